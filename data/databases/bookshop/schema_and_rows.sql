-- A small bookshop. Customers may lack a city, books a price, and one review came in twice.
CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
CREATE TABLE book (
  book_id INTEGER PRIMARY KEY, title TEXT NOT NULL, genre TEXT NOT NULL, price INTEGER,
  author_id INTEGER NOT NULL REFERENCES author(author_id)
);
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (
  customer_id INTEGER NOT NULL REFERENCES customer(customer_id),
  book_id INTEGER NOT NULL REFERENCES book(book_id), quantity INTEGER NOT NULL,
  ordered_on TEXT NOT NULL
);
CREATE TABLE review (
  book_id INTEGER NOT NULL REFERENCES book(book_id),
  customer_id INTEGER NOT NULL REFERENCES customer(customer_id), stars INTEGER
);
INSERT INTO author VALUES
  (1, '김하늘', 'KR'), (2, 'Mara Lind', 'SE'), (3, '이도윤', 'KR'), (4, 'Tom Avery', NULL),
  (5, '박서연', 'KR'), (6, 'Ana Reis', 'PT');
INSERT INTO book VALUES
  (1, '바다의 끝', 'novel', 15000, 1), (2, 'Cold Harbor', 'novel', 18000, 2),
  (3, '통계의 첫걸음', 'science', 24000, 3), (4, 'Salt and Light', 'poetry', 12000, 6),
  (5, '겨울 편지', 'poetry', NULL, 1), (6, 'The Long Table', 'cooking', 28000, 4),
  (7, '도시의 나무', 'science', 21000, 5), (8, 'Night Ferry', 'novel', 16000, 2),
  (9, '숫자와 밤', 'science', NULL, 3), (10, '작은 부엌', 'cooking', 19000, 5),
  (11, 'Paper Birds', 'poetry', 11000, 6), (12, '남쪽 바람', 'novel', 15000, 1);
INSERT INTO customer VALUES
  (1, '최민준', 'Seoul'), (2, '정수아', 'Busan'), (3, 'Lena Holt', NULL), (4, '한지우', 'Seoul'),
  (5, '오세훈', 'Daegu'), (6, 'Marco Pini', 'Busan'), (7, '윤아름', NULL), (8, '서다은', 'Seoul');
INSERT INTO orders VALUES
  (1, 1, 1, '2024-01-05'), (1, 3, 2, '2024-01-05'), (2, 2, 1, '2024-01-11'),
  (2, 6, 1, '2024-02-02'), (3, 1, 3, '2024-02-14'), (4, 7, 1, '2024-02-20'),
  (4, 7, 1, '2024-02-20'), (5, 10, 2, '2024-03-01'), (6, 2, 1, '2024-03-03'),
  (6, 8, 1, '2024-03-03'), (1, 12, 1, '2024-03-09'), (8, 4, 4, '2024-03-15'),
  (2, 5, 1, '2024-04-01'), (4, 1, 2, '2024-04-08'), (5, 3, 1, '2024-04-21'),
  (8, 11, 2, '2024-05-02'), (1, 6, 1, '2024-05-05'), (6, 6, 1, '2024-05-30');
INSERT INTO review VALUES
  (1, 1, 5), (1, 3, 4), (2, 2, 3), (3, 1, 5), (3, 5, 4), (6, 2, NULL), (7, 4, 4), (7, 4, 4),
  (8, 6, 2), (10, 5, 5), (12, 1, NULL), (4, 8, 3), (11, 8, 5), (2, 6, 4), (6, 1, 1);
