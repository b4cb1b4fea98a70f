"""Tables, indexes and views of `results.sqlite`.

Every view follows the chosen scoring of each run (`scorings.chosen`); to see another one,
move the mark there, or query `verdicts` by `evaluator_fingerprint`.
"""

SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,          -- model@first 12 hex of the run fingerprint
    folder TEXT NOT NULL,
    kind TEXT NOT NULL,               -- smoke or full
    experiment TEXT, dataset TEXT, dataset_sha256 TEXT,
    model TEXT, repo TEXT, revision TEXT, locked INTEGER,
    decoding_fingerprint TEXT NOT NULL, run_fingerprint TEXT NOT NULL,
    responses_sha256 TEXT NOT NULL,
    batch_invariant INTEGER, gpu TEXT,
    conditions INTEGER NOT NULL,      -- how many conditions the run answered
    run_json TEXT NOT NULL            -- the whole record of the run
);
CREATE TABLE samples (
    sample_id TEXT PRIMARY KEY, task TEXT NOT NULL, benchmark TEXT, context TEXT, meta TEXT,
    escaped TEXT                      -- columns of this row that hold a JSON literal
);
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,      -- sample_id/condition
    sample_id TEXT NOT NULL REFERENCES samples(sample_id),
    condition TEXT NOT NULL, surface TEXT, escaped TEXT,
    UNIQUE (sample_id, condition)
);
CREATE TABLE responses (
    run_id TEXT NOT NULL REFERENCES runs(run_id),
    request_id TEXT NOT NULL REFERENCES requests(request_id),
    position INTEGER NOT NULL,        -- line of responses.jsonl, from 0
    text TEXT NOT NULL,
    output_token_ids TEXT NOT NULL,   -- JSON array
    finish_reason TEXT NOT NULL,      -- stop, length (cut) or rejected
    stop_reason TEXT, error TEXT,
    prompt_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, prompt_sha256 TEXT NOT NULL,
    characters INTEGER NOT NULL,      -- length(text) would stop at a NUL
    letters INTEGER NOT NULL, hangul_letters INTEGER NOT NULL,   -- after NFC
    escaped TEXT,
    PRIMARY KEY (run_id, request_id)
);
CREATE TABLE scorings (
    run_id TEXT NOT NULL REFERENCES runs(run_id),
    evaluator_fingerprint TEXT NOT NULL,
    chosen INTEGER NOT NULL,          -- 1: the views follow this one
    same_answers INTEGER NOT NULL,    -- 0: it judged other answers; its verdicts are left out
    completed TEXT, sandbox_level TEXT, sandbox TEXT, evaluator TEXT,
    responses_sha256 TEXT NOT NULL,
    PRIMARY KEY (run_id, evaluator_fingerprint)
);
CREATE TABLE verdicts (
    run_id TEXT NOT NULL,
    evaluator_fingerprint TEXT NOT NULL,
    request_id TEXT NOT NULL REFERENCES requests(request_id),
    passed INTEGER NOT NULL, passed_upstream INTEGER NOT NULL,
    outcome TEXT NOT NULL, detail TEXT, extracted TEXT,
    evaluator_name TEXT NOT NULL, evaluator_version TEXT NOT NULL,
    seconds REAL, extra TEXT, escaped TEXT,
    PRIMARY KEY (run_id, evaluator_fingerprint, request_id),
    FOREIGN KEY (run_id, evaluator_fingerprint)
        REFERENCES scorings(run_id, evaluator_fingerprint),
    FOREIGN KEY (run_id, request_id) REFERENCES responses(run_id, request_id)
);
CREATE TABLE excluded (               -- samples whose reference fails under a scoring
    run_id TEXT NOT NULL,
    evaluator_fingerprint TEXT NOT NULL,
    sample_id TEXT NOT NULL REFERENCES samples(sample_id),
    PRIMARY KEY (run_id, evaluator_fingerprint, sample_id),
    FOREIGN KEY (run_id, evaluator_fingerprint)
        REFERENCES scorings(run_id, evaluator_fingerprint)
);
CREATE TABLE replays (                -- requests answered again under another batching
    run_id TEXT NOT NULL REFERENCES runs(run_id),
    number INTEGER NOT NULL, at TEXT NOT NULL, task TEXT NOT NULL, condition TEXT NOT NULL,
    requests INTEGER NOT NULL, answers_changed INTEGER NOT NULL,
    verdicts_changed INTEGER,         -- by the chosen scoring; NULL where it has not judged them
    PRIMARY KEY (run_id, number, task, condition)
);
CREATE INDEX requests_condition ON requests(condition);
CREATE INDEX responses_request ON responses(request_id);
CREATE INDEX responses_finish_reason ON responses(finish_reason);
CREATE INDEX verdicts_request ON verdicts(request_id);
CREATE INDEX verdicts_outcome ON verdicts(outcome);
"""

VIEWS = """
CREATE VIEW judged AS                 -- one row a response, its chosen verdict beside it
SELECT runs.run_id, runs.model, samples.task, samples.benchmark, requests.sample_id,
       requests.condition, responses.request_id, responses.position,
       CASE
           WHEN responses.finish_reason = 'rejected' THEN 'rejected'
           WHEN verdicts.outcome = 'reference_error' OR excluded.sample_id IS NOT NULL
               THEN 'reference_error'
           ELSE coalesce(verdicts.outcome, 'no_verdict')
       END AS status,
       verdicts.passed, verdicts.passed_upstream, verdicts.outcome, verdicts.detail,
       verdicts.extracted, responses.finish_reason, responses.error, responses.text,
       responses.prompt_tokens, responses.output_tokens, responses.characters,
       responses.letters, responses.hangul_letters, verdicts.extra,
       nullif(trim(coalesce(responses.escaped, '') || ',' || coalesce(verdicts.escaped, ''),
                   ','), '') AS escaped,
       scorings.evaluator_fingerprint
FROM responses
JOIN runs USING (run_id)
JOIN requests USING (request_id)
JOIN samples USING (sample_id)
LEFT JOIN scorings ON scorings.run_id = responses.run_id AND scorings.chosen
LEFT JOIN verdicts ON verdicts.run_id = responses.run_id
    AND verdicts.evaluator_fingerprint = scorings.evaluator_fingerprint
    AND verdicts.request_id = responses.request_id
LEFT JOIN excluded ON excluded.run_id = responses.run_id
    AND excluded.evaluator_fingerprint = scorings.evaluator_fingerprint
    AND excluded.sample_id = requests.sample_id;

CREATE VIEW paired AS                 -- one row a sample; complete = 1 enters the comparisons
SELECT run_id, model, sample_id, task, benchmark, EN, KO, MIX1, MIX2, MIX3,
       left_out IS NULL AS complete, left_out
FROM (
    SELECT run_id, model, sample_id, task, benchmark,
           max(CASE WHEN condition = 'EN' THEN passed END) AS EN,
           max(CASE WHEN condition = 'KO' THEN passed END) AS KO,
           max(CASE WHEN condition = 'MIX1' THEN passed END) AS MIX1,
           max(CASE WHEN condition = 'MIX2' THEN passed END) AS MIX2,
           max(CASE WHEN condition = 'MIX3' THEN passed END) AS MIX3,
           CASE
               WHEN max(status = 'rejected') THEN 'rejected'
               WHEN count(*) < conditions THEN 'missing'
               WHEN max(status = 'no_verdict') THEN 'no_verdict'
               WHEN max(status = 'reference_error') THEN 'reference_error'
           END AS left_out
    FROM judged JOIN (SELECT run_id, conditions FROM runs) USING (run_id) GROUP BY run_id, sample_id
);

CREATE VIEW accuracy_by_condition AS  -- over complete samples, so that conditions compare
SELECT judged.run_id, judged.model, judged.task, judged.condition, count(*) AS n,
       sum(passed) AS passed, avg(passed) AS accuracy,
       sum(passed_upstream) AS passed_upstream, avg(passed_upstream) AS accuracy_upstream
FROM judged JOIN paired USING (run_id, sample_id) WHERE paired.complete
GROUP BY judged.run_id, judged.task, judged.condition;

CREATE VIEW sensitivity_by_condition AS   -- how stricter (SQL) and looser (finance) rules count
SELECT judged.run_id, judged.model, judged.task, judged.condition, count(*) AS n,
       sum(passed) AS passed,
       sum(json_extract(extra, '$.strict')) AS strict,
       sum(json_extract(extra, '$.within_1_percent')) AS within_1_percent,
       sum(json_extract(extra, '$.equal_rounded')) AS equal_rounded,
       sum(json_extract(extra, '$.percent_x100')) AS percent_x100
FROM judged JOIN paired USING (run_id, sample_id)
WHERE paired.complete AND judged.task IN ('sql', 'finance')
GROUP BY judged.run_id, judged.task, judged.condition;

CREATE VIEW outcomes_by_condition AS  -- passed to no_verdict add up to responses
SELECT run_id, model, task, condition, count(*) AS responses,
       sum(status = 'passed') AS passed, sum(status = 'wrong_answer') AS wrong_answer,
       sum(status = 'error') AS error, sum(status = 'timeout') AS timeout,
       sum(status = 'no_answer') AS no_answer,
       sum(status = 'wrong_extraction') AS wrong_extraction, sum(status = 'unsafe') AS unsafe,
       sum(status = 'reference_error') AS reference_error,
       sum(status = 'rejected') AS rejected, sum(status = 'no_verdict') AS no_verdict,
       sum(finish_reason = 'length') AS cut_by_length
FROM judged GROUP BY run_id, task, condition;

CREATE VIEW differences_passed_upstream AS
SELECT * FROM judged WHERE passed <> passed_upstream;

CREATE VIEW cut_by_length AS
SELECT * FROM judged WHERE finish_reason = 'length';

CREATE VIEW rejected AS
SELECT * FROM judged WHERE finish_reason = 'rejected';
"""
