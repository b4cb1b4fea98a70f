-- A small bookshop. A book may lack a price, a customer a city, an order its customer; some
-- reviews were saved twice.
CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
CREATE TABLE book (
  book_id INTEGER PRIMARY KEY, title TEXT NOT NULL, genre TEXT NOT NULL, price INTEGER,
  author_id INTEGER NOT NULL REFERENCES author(author_id)
);
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (
  order_id INTEGER PRIMARY KEY,
  customer_id INTEGER REFERENCES customer(customer_id), -- NULL for a guest
  book_id INTEGER NOT NULL REFERENCES book(book_id),
  quantity INTEGER NOT NULL, ordered_on TEXT NOT NULL
);
CREATE TABLE review (
  book_id INTEGER NOT NULL REFERENCES book(book_id),
  customer_id INTEGER NOT NULL REFERENCES customer(customer_id),
  stars INTEGER, written_on TEXT NOT NULL
);
INSERT INTO author VALUES
  (1, '김하람', 'KR'), (2, 'Mara Lind', 'SE'), (3, '이도윤', 'KR'), (4, 'Tom Avery', NULL),
  (5, '박서연', 'KR'), (6, 'Ana Reis', 'PT'), (7, '정해솔', 'KR'), (8, 'Noor Haddad', 'JO'),
  (9, '최은결', 'KR'), (10, 'Per Dahl', 'DK'), (11, '유나래', 'KR'), (12, 'Iris Moran', NULL),
  (13, '한들', 'KR'), (14, 'Leo Brandt', 'DE'), (15, '오가온', 'KR'), (16, 'Kaya Demir', 'TR'),
  (17, '신다온', 'KR'), (18, 'Jun Mori', 'JP'), (19, '문솔별', 'KR'), (20, 'Ella Stone', NULL);
INSERT INTO book VALUES
  (1, '바다의 끝', 'novel', 15000, 1), (2, 'Cold Harbor', 'novel', 18000, 2),
  (3, '통계의 첫걸음', 'science', 24000, 3), (4, 'Salt and Light', 'poetry', 12000, 6),
  (5, '겨울 편지', 'poetry', NULL, 1), (6, 'The Long Table', 'cooking', 28000, 4),
  (7, '도시의 나무', 'science', 21000, 5), (8, 'Night Ferry', 'novel', 16000, 2),
  (9, '숫자와 밤', 'science', NULL, 3), (10, '작은 부엌', 'cooking', 19000, 5),
  (11, 'Paper Birds', 'poetry', 11000, 6), (12, '남쪽 바람', 'novel', 15000, 1),
  (13, '골목의 지도', 'travel', 17500, 7), (14, 'Olive Roads', 'travel', 22000, 8),
  (15, '느린 기차', 'travel', 16500, 9), (16, 'Winter Docks', 'novel', NULL, 10),
  (17, '별을 세는 법', 'science', 23000, 11), (18, 'Glass Orchard', 'novel', 17000, 12),
  (19, '밥과 국', 'cooking', 18500, 13), (20, 'A Field Guide to Fog', 'science', 26000, 14),
  (21, '섬에서 보낸 한 철', 'travel', NULL, 15), (22, 'Red Kettle', 'cooking', 20000, 16),
  (23, '물결 노트', 'poetry', 12500, 17), (24, 'Quiet Machines', 'science', 25000, 18),
  (25, '늦은 오후', 'novel', 14500, 19), (26, 'Tin Roofs', 'poetry', NULL, 2);
INSERT INTO customer VALUES
  (1, '최민준', 'Seoul'), (2, '정수린', 'Busan'), (3, 'Lena Holt', NULL), (4, '한지율', 'Seoul'),
  (5, '오세진', 'Daegu'), (6, 'Marco Pini', 'Busan'), (7, '윤아름', NULL), (8, '서다은', 'Seoul'),
  (9, '강태울', 'Incheon'), (10, 'Nina Falk', 'Jeju'), (11, '임소율', 'Daegu'), (12, '백건율', 'Seoul'),
  (13, 'Omar Said', NULL), (14, '노하린', 'Busan'), (15, '구본율', 'Incheon'),
  (16, 'Tess Byrne', 'Seoul'), (17, '장예린', 'Gwangju'), (18, '문태경', NULL),
  (19, 'Ivan Kolar', 'Jeju'), (20, '하유나', 'Gwangju'), (21, '송지울', 'Seoul'),
  (22, 'Ada Nyman', 'Daegu'), (23, '권나연', NULL), (24, '배시우', 'Daejeon');
INSERT INTO orders VALUES
  (1, 1, 5, 2, '2024-01-04'), (2, 2, 2, 1, '2024-01-08'), (3, 3, 4, 1, '2024-01-11'),
  (4, 4, 2, 2, '2024-01-14'), (5, 5, 2, 1, '2024-01-15'), (6, NULL, 14, 1, '2024-01-17'),
  (7, 6, 3, 2, '2024-01-18'), (8, 8, 2, 2, '2024-01-20'), (9, 9, 8, 3, '2024-01-20'),
  (10, 10, 19, 1, '2024-01-24'), (11, 11, 19, 2, '2024-01-27'), (12, 13, 8, 1, '2024-01-27'),
  (13, 14, 5, 1, '2024-01-30'), (14, 15, 5, 2, '2024-02-01'), (15, NULL, 19, 1, '2024-02-01'),
  (16, 16, 22, 1, '2024-02-04'), (17, 17, 19, 2, '2024-02-04'), (18, 18, 7, 1, '2024-02-08'),
  (19, 20, 18, 3, '2024-02-08'), (20, 21, 19, 1, '2024-02-08'), (21, 22, 7, 2, '2024-02-11'),
  (22, NULL, 18, 2, '2024-02-15'), (23, 17, 19, 2, '2024-02-16'), (24, 11, 8, 1, '2024-02-17'),
  (25, 9, 3, 2, '2024-02-21'), (26, 20, 16, 1, '2024-02-22'), (27, 17, 10, 2, '2024-02-26'),
  (28, 4, 17, 2, '2024-02-26'), (29, 13, 5, 2, '2024-02-27'), (30, 2, 22, 1, '2024-02-29'),
  (31, NULL, 19, 1, '2024-03-03'), (32, 14, 20, 2, '2024-03-04'), (33, 17, 3, 1, '2024-03-07'),
  (34, 18, 23, 3, '2024-03-08'), (35, 2, 24, 3, '2024-03-08'), (36, 22, 22, 2, '2024-03-09'),
  (37, 15, 22, 1, '2024-03-10'), (38, 17, 12, 1, '2024-03-10'), (39, NULL, 4, 2, '2024-03-13'),
  (40, 8, 25, 1, '2024-03-13'), (41, 9, 13, 2, '2024-03-14'), (42, 3, 6, 2, '2024-03-16'),
  (43, 21, 9, 1, '2024-03-18'), (44, 21, 9, 3, '2024-03-20');
INSERT INTO review VALUES
  (10, 9, 5, '2024-02-04'), (4, 14, 2, '2024-02-07'), (6, 21, 5, '2024-02-07'),
  (4, 13, 2, '2024-02-14'), (22, 15, 3, '2024-02-16'), (22, 15, 3, '2024-02-16'),
  (22, 11, 3, '2024-02-22'), (3, 9, 3, '2024-02-27'), (1, 22, 5, '2024-03-10'),
  (8, 15, 4, '2024-03-10'), (11, 18, 5, '2024-03-13'), (3, 6, 3, '2024-03-15'),
  (3, 6, 3, '2024-03-15'), (6, 3, 3, '2024-03-17'), (24, 13, NULL, '2024-03-29'),
  (12, 3, 5, '2024-04-07'), (1, 1, 5, '2024-04-12'), (7, 10, 1, '2024-04-13'),
  (7, 10, 1, '2024-04-13'), (22, 8, 3, '2024-04-27'), (11, 8, 5, '2024-04-29'),
  (14, 6, 3, '2024-05-02'), (18, 14, 3, '2024-05-08'), (3, 4, 3, '2024-05-10'),
  (17, 15, 2, '2024-05-11'), (8, 9, 3, '2024-05-13'), (22, 6, 4, '2024-05-22'),
  (22, 6, 4, '2024-05-22'), (3, 8, 3, '2024-05-23'), (3, 15, 5, '2024-05-29'),
  (4, 18, 5, '2024-05-30'), (4, 18, 5, '2024-05-30'), (14, 14, 2, '2024-06-01'),
  (22, 1, 4, '2024-06-02'), (8, 20, 4, '2024-06-06'), (13, 5, NULL, '2024-06-11'),
  (1, 8, 4, '2024-06-15'), (6, 16, 4, '2024-06-16'), (2, 17, 5, '2024-06-23');
