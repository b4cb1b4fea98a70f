-- A city bike rental. A bike may have no home station, a rental no member; some rentals were
-- saved twice.
CREATE TABLE station (
  station_id INTEGER PRIMARY KEY, name TEXT NOT NULL, district TEXT NOT NULL, docks INTEGER
);
CREATE TABLE bike (
  bike_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, bought_on TEXT NOT NULL,
  home_station_id INTEGER REFERENCES station(station_id)
);
CREATE TABLE member (member_id INTEGER PRIMARY KEY, name TEXT NOT NULL, plan TEXT);
CREATE TABLE rental (
  member_id INTEGER REFERENCES member(member_id), -- NULL for a guest
  bike_id INTEGER NOT NULL REFERENCES bike(bike_id),
  start_station_id INTEGER NOT NULL REFERENCES station(station_id),
  end_station_id INTEGER REFERENCES station(station_id), -- NULL until the bike is returned
  started_at TEXT NOT NULL, minutes INTEGER
);
INSERT INTO station VALUES
  (1, 'City Hall', 'Jung', 20), (2, 'Riverside', 'Mapo', 15), (3, 'Market', 'Jung', 10),
  (4, 'University', 'Seodaemun', 25), (5, 'Museum', 'Yongsan', NULL), (6, 'Stadium', 'Mapo', 30),
  (7, 'Library', 'Seodaemun', 12), (8, 'North Gate', 'Jongno', 18),
  (9, 'Old Bridge', 'Yongsan', 14), (10, 'Art Park', 'Mapo', 22),
  (11, 'Harbor Road', 'Seongdong', 16), (12, 'Forest Park', 'Seongdong', 28),
  (13, 'Fire Station', 'Jung', 8), (14, 'School Hill', 'Jongno', NULL),
  (15, 'Central Station', 'Yongsan', 35), (16, 'West Bank', 'Mapo', 20),
  (17, 'Mill Street', 'Seongdong', 12), (18, 'Observatory', 'Jongno', 10),
  (19, 'Clock Tower', 'Jung', 15), (20, 'Hospital', 'Seodaemun', NULL);
INSERT INTO bike VALUES
  (101, 'standard', '2023-08-17', 17), (102, 'standard', '2021-09-16', 8),
  (103, 'electric', '2020-08-10', 7), (104, 'electric', '2020-09-26', 6),
  (105, 'cargo', '2020-10-13', NULL), (106, 'standard', '2021-10-01', 17),
  (107, 'standard', '2020-01-07', 3), (108, 'electric', '2020-08-11', 9),
  (109, 'electric', '2021-09-08', 17), (110, 'cargo', '2022-08-01', NULL),
  (111, 'standard', '2023-11-09', 3), (112, 'standard', '2020-12-09', 16),
  (113, 'electric', '2021-09-10', 12), (114, 'electric', '2020-10-25', 1),
  (115, 'cargo', '2023-02-28', 4), (116, 'standard', '2023-02-01', 11),
  (117, 'standard', '2021-04-02', 1), (118, 'electric', '2023-07-23', NULL),
  (119, 'electric', '2023-02-19', 15), (120, 'cargo', '2022-06-03', 8),
  (121, 'standard', '2022-01-14', 11), (122, 'standard', '2021-04-23', 4),
  (123, 'electric', '2020-01-15', 4), (124, 'electric', '2021-11-18', 19),
  (125, 'cargo', '2023-09-07', 8), (126, 'standard', '2021-07-21', NULL),
  (127, 'standard', '2020-07-14', 15), (128, 'electric', '2020-05-28', 8);
INSERT INTO member VALUES
  (1, '강도현', 'year'), (2, '문채울', 'month'), (3, 'Ivo Petrov', NULL), (4, '배유솔', 'year'),
  (5, '신동열', 'day'), (6, '임가은', 'month'), (7, 'Sara Ek', NULL), (8, '조현묵', 'year'),
  (9, '나윤서', 'month'), (10, 'Paul Okafor', 'day'), (11, '심재하', 'year'), (12, '류다온', NULL),
  (13, 'Mia Torres', 'month'), (14, '고은결', 'day'), (15, 'Jan Vos', 'year'), (16, '추소율', 'month'),
  (17, 'Rana Aziz', NULL), (18, '민경호', 'year'), (19, '염지안', 'day'), (20, 'Olga Brun', 'month'),
  (21, '표승민', 'month'), (22, '설아람', 'year');
INSERT INTO rental VALUES
  (19, 104, 1, 13, '2024-05-01 10:00', 82), (20, 112, 2, 9, '2024-05-01 10:46', 6),
  (7, 119, 7, 7, '2024-05-01 13:42', 16), (7, 119, 7, 7, '2024-05-01 13:42', 16),
  (NULL, 115, 1, 12, '2024-05-01 16:11', 84), (13, 106, 15, 19, '2024-05-01 17:41', 22),
  (7, 106, 4, 20, '2024-05-01 19:24', 36), (3, 114, 19, 16, '2024-05-01 21:29', 82),
  (9, 108, 2, 2, '2024-05-01 22:18', 70), (16, 110, 4, 20, '2024-05-02 02:03', NULL),
  (8, 116, 2, 3, '2024-05-02 06:54', 21), (8, 116, 2, 3, '2024-05-02 06:54', 21),
  (3, 109, 4, 7, '2024-05-02 07:56', 7), (10, 112, 9, 2, '2024-05-02 11:51', 27),
  (NULL, 105, 15, 3, '2024-05-02 16:47', 51), (5, 119, 6, 17, '2024-05-02 21:02', 79),
  (10, 102, 1, 12, '2024-05-02 21:44', 94), (10, 102, 1, 12, '2024-05-02 21:44', 94),
  (10, 112, 16, 16, '2024-05-02 22:19', 13), (12, 124, 1, 1, '2024-05-02 23:53', 74),
  (3, 122, 2, 11, '2024-05-03 00:40', 50), (16, 119, 1, 14, '2024-05-03 05:07', 8),
  (13, 113, 16, NULL, '2024-05-03 05:39', NULL), (4, 109, 16, 16, '2024-05-03 06:10', 16),
  (4, 109, 16, 16, '2024-05-03 06:10', 16), (15, 116, 6, 19, '2024-05-03 10:08', 63),
  (NULL, 121, 11, 1, '2024-05-03 11:15', 44), (4, 117, 10, 10, '2024-05-03 12:24', 94),
  (5, 123, 4, 12, '2024-05-03 16:57', 43), (15, 117, 11, 11, '2024-05-03 19:05', 89),
  (15, 117, 11, 11, '2024-05-03 19:05', 89), (14, 127, 6, 9, '2024-05-03 21:33', 30),
  (11, 107, 3, 19, '2024-05-03 23:40', NULL), (9, 106, 2, 2, '2024-05-04 01:14', 13),
  (13, 122, 9, 7, '2024-05-04 02:36', 57), (11, 103, 10, 20, '2024-05-04 07:27', 62),
  (NULL, 125, 4, 2, '2024-05-04 08:08', 91), (5, 114, 15, 19, '2024-05-04 10:56', 7),
  (5, 114, 15, 19, '2024-05-04 10:56', 7), (1, 126, 3, NULL, '2024-05-04 15:13', NULL),
  (4, 116, 4, 2, '2024-05-04 17:54', 85), (7, 107, 17, 12, '2024-05-04 19:14', 14),
  (16, 119, 4, 1, '2024-05-04 23:42', NULL), (17, 118, 2, 12, '2024-05-05 00:25', 74),
  (14, 125, 7, 8, '2024-05-05 02:11', 16), (NULL, 101, 2, 7, '2024-05-05 05:54', 85),
  (15, 111, 12, 17, '2024-05-05 09:31', 48), (4, 107, 2, NULL, '2024-05-05 11:40', NULL),
  (11, 110, 7, 10, '2024-05-05 14:09', 73), (11, 121, 6, 2, '2024-05-05 14:42', 61),
  (16, 101, 4, NULL, '2024-05-05 18:42', NULL), (18, 114, 1, 2, '2024-05-05 20:58', 27);
