-- A city bike rental. A ride without an end is still going on; two rides were logged twice.
CREATE TABLE station (
  station_id INTEGER PRIMARY KEY, name TEXT NOT NULL, district TEXT NOT NULL, docks INTEGER
);
CREATE TABLE bike (
  bike_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, bought_on TEXT NOT NULL,
  home_station_id INTEGER REFERENCES station(station_id)
);
CREATE TABLE member (member_id INTEGER PRIMARY KEY, name TEXT NOT NULL, plan TEXT);
CREATE TABLE ride (
  member_id INTEGER NOT NULL REFERENCES member(member_id),
  bike_id INTEGER NOT NULL REFERENCES bike(bike_id),
  start_station_id INTEGER NOT NULL REFERENCES station(station_id),
  end_station_id INTEGER REFERENCES station(station_id),
  started_on TEXT NOT NULL, minutes INTEGER
);
INSERT INTO station VALUES
  (1, 'City Hall', 'Jung', 20), (2, 'Riverside', 'Mapo', 15), (3, 'Market', 'Jung', 10),
  (4, 'University', 'Seodaemun', 25), (5, 'Museum', 'Yongsan', NULL), (6, 'Stadium', 'Mapo', 30);
INSERT INTO bike VALUES
  (101, 'standard', '2021-04-01', 1), (102, 'standard', '2021-04-01', 2),
  (103, 'electric', '2022-06-15', 2), (104, 'electric', '2023-03-10', 4),
  (105, 'cargo', '2023-03-10', NULL), (106, 'standard', '2020-09-01', 3),
  (107, 'electric', '2023-08-20', 6), (108, 'cargo', '2022-01-05', 6),
  (109, 'standard', '2024-02-02', NULL);
INSERT INTO member VALUES
  (1, '강도현', 'year'), (2, '문채원', 'month'), (3, 'Ivo Petrov', NULL), (4, '배유진', 'year'),
  (5, '신동우', 'day'), (6, '임가은', 'month'), (7, 'Sara Ek', NULL), (8, '조현우', 'year');
INSERT INTO ride VALUES
  (1, 101, 1, 2, '2024-05-01', 18), (1, 103, 2, 1, '2024-05-01', 12),
  (2, 102, 2, 4, '2024-05-01', 35), (3, 104, 4, 4, '2024-05-02', 50),
  (4, 101, 2, 3, '2024-05-02', 22), (4, 106, 3, 1, '2024-05-02', 9),
  (5, 107, 6, 2, '2024-05-03', 27), (5, 107, 6, 2, '2024-05-03', 27),
  (6, 103, 1, 5, '2024-05-03', 41), (2, 108, 6, NULL, '2024-05-03', NULL),
  (8, 104, 4, 6, '2024-05-04', 33), (1, 102, 4, 1, '2024-05-04', 29),
  (8, 104, 6, 4, '2024-05-05', 31), (7, 101, 1, 1, '2024-05-05', 60),
  (6, 106, 1, 3, '2024-05-05', 11), (6, 106, 1, 3, '2024-05-05', 11),
  (4, 103, 5, 2, '2024-05-06', 38), (3, 108, 6, 6, '2024-05-06', 75),
  (8, 102, 1, 4, '2024-05-06', 30), (5, 101, 1, NULL, '2024-05-07', NULL),
  (1, 104, 4, 1, '2024-05-07', 26), (2, 103, 2, 2, '2024-05-07', 15);
