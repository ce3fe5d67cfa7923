"""viprl's own history, CSV and other people's visit tables: good, mapped, malformed, cut off."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from viprl.errors import InvalidInputError
from viprl.history import HistoryWriter
from viprl.replay import LogFormatError, ReadReport, read_log, read_rates

VISITS = [(1, "a", 0, 4), (1, "b", 3, 4), (2, "a", 2, 8), (3, "b", 4, 4)]


def row(step, prompt_id, k, n, **extra):
    return {"step": step, "prompt_id": prompt_id, "successes": k, "n_rollouts": n, **extra}


def history_row(step, prompt_id, k, n):
    return row(
        step,
        prompt_id,
        float(k),
        n,
        visit=0,
        reward_mean=k / n,
        reward_var=None,
        predicted_mean=0.5,
        predicted_bernoulli_variance=0.2,
        group_size=n,
        tokens=None,
        seconds=1.0,
    )


def visits_of(log):
    step = np.repeat(log.step_numbers, np.diff(log.offsets))
    return [
        (int(s), log.prompt_ids[r], int(k), int(n))
        for s, r, k, n in zip(step, log.rows, log.successes, log.rollouts, strict=True)
    ]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_the_history_that_trainers_write_comes_back(tmp_path, format):
    writer = HistoryWriter(tmp_path / "history", format=format, flush_every=2)
    for visit in VISITS:
        writer.add([history_row(*visit)])
    writer.flush()
    for path in (tmp_path, tmp_path / "history"):  # the run's folder or the history itself
        log, report = read_log(path)
        assert visits_of(log) == VISITS and report.files == 2 and report.kept == 4 and not report.malformed
    part = sorted((tmp_path / "history").iterdir())[0]
    assert len(read_log(part)[0]) == 3


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet"])
def test_four_columns_are_enough(tmp_path, suffix):
    path = tmp_path / f"log{suffix}"
    frame = pd.DataFrame([row(*v) for v in VISITS])
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    else:
        text = "".join(json.dumps(row(*v)) + "\n" for v in VISITS)
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert visits_of(read_log(path)[0]) == VISITS


def test_mapped_columns_rates_and_numeric_ids(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeffiteration , problem,acc,samples\n1,17,0.25,8\n1,18,0.3333333333,3\n")
    mapping = {"step": "iteration", "prompt_id": "problem", "success_rate": "acc", "n_rollouts": "samples"}
    assert visits_of(read_log(path, columns=mapping)[0]) == [(1, "17", 2, 8), (1, "18", 1, 3)]
    line = "--columns step=iteration,prompt=problem,success_rate=acc,n_rollouts=samples"
    with pytest.raises(LogFormatError, match=line):
        read_log(path)


BAD_LINES = [
    ('{"step": 1, "prompt_id": "a", "successes": 2', "must be JSON"),
    ("[1, 2, 3]", "must be a JSON object"),
    ('{"step": 1, "successes": 2, "n_rollouts": 4}', "prompt_id is missing"),
    ('{"step": 1.5, "prompt_id": "a", "successes": 2, "n_rollouts": 4}', "step is not a whole number"),
    ('{"step": "x", "prompt_id": "a", "successes": 2, "n_rollouts": 4}', "step is not a number"),
    ('{"step": 1, "prompt_id": "a", "successes": 5, "n_rollouts": 4}', "successes is not in"),
    ('{"step": 1, "prompt_id": "a", "successes": -1, "n_rollouts": 4}', "successes is not in"),
    ('{"step": 1, "prompt_id": "a", "successes": 1, "n_rollouts": 2.5}', "n_rollouts is not a whole number"),
    ('{"step": 1, "prompt_id": "a", "n_rollouts": 4}', "successes is missing"),
    ('{"step": 1, "prompt_id": "a", "successes": NaN, "n_rollouts": 4}', "successes is missing"),
    ("\xff\xfe", "must be UTF-8"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_malformed_line_is_named_or_skipped(tmp_path, line, reason):
    path = tmp_path / "log.jsonl"
    good = [json.dumps(row(*v)) for v in VISITS]
    path.write_bytes("\n".join([good[0], "", line, *good[1:]]).encode("latin-1") + b"\n")
    with pytest.raises(LogFormatError, match=rf"log.jsonl, line 3: .*{reason}.*--on-error skip"):
        read_log(path)
    log, report = read_log(path, on_error="skip")
    assert visits_of(log) == VISITS and report.malformed_rows == 1 and report.rows == 5
    assert report.examples[0][:2] == ("log.jsonl", 3) and reason.split()[0] in report.examples[0][2]
    assert any("line 3" in text for text in report.lines())


def test_a_file_cut_anywhere_loses_at_most_its_last_line(tmp_path):
    path = tmp_path / "log.jsonl"
    text = "".join(json.dumps(row(*v)) + "\n" for v in VISITS).encode()
    ends = [i for i, byte in enumerate(text) if byte == ord("\n")]
    for length in range(ends[0] + 1, len(text), 7):
        path.write_bytes(text[:length])
        log, report = read_log(path, on_error="skip")
        whole = sum(end <= length for end in ends)
        assert len(log) == whole and report.malformed_rows == (0 if length - 1 in ends or length in ends else 1)


def test_malformed_csv_and_parquet_rows(tmp_path):
    table = tmp_path / "log.csv"
    table.write_text("step,prompt_id,successes,n_rollouts\n1,a,1,4\n1,b,9,4\n2,a,x,4\n2,b,1\n3,c,0,0\n3,a,2,4\n")
    log, report = read_log(table, on_error="skip")
    assert [v[:2] for v in visits_of(log)] == [(1, "a"), (3, "a")]
    assert [example[1] for example in report.examples] == [3, 4, 5]
    assert report.dropped == {"no rollout has a reward": 1}
    frame = pd.DataFrame([row(*v) for v in VISITS]).astype({"successes": object, "prompt_id": object})
    frame.loc[1, "successes"] = "many"
    frame.loc[2, "prompt_id"] = None
    frame["successes"] = frame["successes"].astype(str)
    frame.to_parquet(tmp_path / "log.parquet")
    with pytest.raises(LogFormatError, match="line 2: successes is not a number .so it is with 2 of 4 rows"):
        read_log(tmp_path / "log.parquet")
    log, report = read_log(tmp_path / "log.parquet", on_error="skip")
    assert len(log) == 2 and report.malformed_rows == 2
    whole = (tmp_path / "log.parquet").read_bytes()
    (tmp_path / "log.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogFormatError, match="whole parquet file"):
        read_log(tmp_path / "log.parquet")


def test_what_is_no_log_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_log(tmp_path / "absent")
    with pytest.raises(LogFormatError, match="has no log files"):
        read_log(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(LogFormatError, match="has loss; say which is which: --columns step=NAME"):
        read_log(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(LogFormatError, match="files of one kind"):
        read_log(tmp_path)
    with pytest.raises(InvalidInputError, match="must be a header"):
        read_log(tmp_path / "a.csv")
    (tmp_path / "b.jsonl").write_text("nonsense\n")
    with pytest.raises(LogFormatError, match="its lines hold none"):
        read_log(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_text(json.dumps(row(1, "a", 0, 0)) + "\n")
    with pytest.raises(LogFormatError, match="at least one visit"):
        read_log(tmp_path / "c.jsonl")
    with pytest.raises(LogFormatError, match="format must be auto or one of"):
        read_log(tmp_path / "c.jsonl", format="tensorboard")


def test_many_bad_rows_are_counted_and_a_few_shown(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row(*VISITS[0])) + "\n" + "junk\n" * 500)
    _, report = read_log(path, on_error="skip")
    assert report.malformed == {"must be JSON": 500} and len(report.examples) == 10
    assert "  ... and 490 more" in report.lines() and "MOST ROWS WERE LEFT OUT (500 of 501)" in report.lines()[-1]


def test_rates_with_counts_without_and_from_a_log(tmp_path):
    counted = tmp_path / "counted.jsonl"
    counted.write_text("".join(json.dumps(row(*v)) + "\n" for v in VISITS))
    report = ReadReport("rates")
    rates = read_rates(counted, report)
    assert rates.prompt_ids == ("a", "b") and rates.rollouts.tolist() == [12, 8]
    assert rates.rate == pytest.approx([2 / 12, 7 / 8]) and any("repeat a prompt" in n for n in report.notices)
    plain = tmp_path / "plain.csv"
    plain.write_text("prompt_id,success_rate\na,0.5\nb,1.5\nc,\n,0.2\nd,1\n")
    with pytest.raises(LogFormatError, match="line 3: success_rate is not in"):
        read_rates(plain, ReadReport("rates"))
    report = ReadReport("rates", on_error="skip")
    rates = read_rates(plain, report)
    assert rates.prompt_ids == ("a", "d") and rates.rollouts.tolist() == [2, 2] and rates.rate.tolist() == [0.5, 1.0]
    assert [e[1] for e in report.examples] == [3, 4, 5]
    with pytest.raises(LogFormatError, match="no column 'p' for success_rate"):
        read_rates(plain, ReadReport("rates"), columns={"success_rate": "p"})
