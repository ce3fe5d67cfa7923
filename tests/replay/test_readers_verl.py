"""verl's dumps: rows as verl 0.9.1 writes them, the files of a real run, and damaged copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from viprl.prompts.ids import content_hash
from viprl.replay import LogFormatError, read_log

FILES = Path(__file__).parent / "files" / "verl"


def entry(step, uid, prompt, score, **extra):
    row = {"input": prompt, "output": "so 4", "gts": "4", "score": score, "step": step}
    return row | ({} if uid is None else {"uid": uid}) | extra


def write(folder, rows_by_step):
    folder.mkdir(exist_ok=True)
    for step, rows in rows_by_step.items():
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    return folder


def groups(log):
    return [
        {log.prompt_ids[log.rows[v]]: (log.successes[v], log.rollouts[v]) for v in range(s.start, s.stop)}
        for s in log.steps()
    ]


def test_groups_by_uid_identity_by_text_padding_left_out(tmp_path):
    two, four = "user\n2+2?\nassistant\n", "user\nÜber 4²?\nassistant\n"
    folder = write(
        tmp_path / "rollouts",
        {
            10: [entry(10, f"77aa_{j}_0", two, float(j == 0)) for j in range(3)],
            2: [entry(2, f"f00d_{j}_0", two, float(j)) for j in range(2)]
            + [entry(2, f"beef_{j}_0", four, 1.0) for j in range(5)]
            + [entry(2, f"pad7_{j}_0", four, 0.0) for j in range(3)],
        },
    )
    log, report = read_log(folder)
    assert report.format == "verl" and log.step_numbers.tolist() == [2, 10]
    assert groups(log) == [{content_hash(two): (1, 2), content_hash(four): (5, 5)}, {content_hash(two): (1, 3)}]
    assert report.dropped == {"padding rows": 3} and report.texts[content_hash(four)].strip() == four.strip()


def test_the_last_output_of_a_session_is_its_reward_and_the_first_names_the_prompt(tmp_path):
    rows = []
    for rollout in range(2):
        rows += [
            entry(1, f"ab_c_{rollout}_0", "question", 0.0),
            entry(1, f"ab_c_{rollout}_1", "question and a tool's answer", float(rollout)),
        ]
    log, _ = read_log(write(tmp_path / "d", {1: rows}))
    assert groups(log) == [{content_hash("question"): (1, 2)}]


def test_dumps_without_uid_are_grouped_by_text(tmp_path):
    rows = [entry(1, None, q, s) for q in ("a", "b") for s in (1.0, -1.0, -1.0)]
    log, report = read_log(write(tmp_path / "d", {1: rows}))
    assert groups(log) == [{content_hash("a"): (1, 3), content_hash("b"): (1, 3)}]
    assert any("no uid" in note and "stood twice" in note for note in report.notices)


def test_one_text_in_two_groups_of_a_step_counts_once(tmp_path):
    rows = [entry(1, f"{group}_{j}_0", "same", float(j)) for group in ("x", "y") for j in range(2)]
    log, report = read_log(write(tmp_path / "d", {1: rows}))
    assert len(log) == 1 and log.repeats == 1
    assert report.dropped == {"the prompt stood in the same step already": 1}


def test_missing_rewards_other_columns_and_thresholds(tmp_path):
    rows = [entry(1, f"x_{j}_0", "q", s, acc=a) for j, (s, a) in enumerate([(None, 1), (0.7, 0), (0.2, True)])]
    folder = write(tmp_path / "d", {1: rows})
    with pytest.raises(LogFormatError, match=r"2 values \(0.2, 0.7\).*--success-at"):
        read_log(folder)
    log, report = read_log(folder, success_at=0.5)
    assert groups(log) == [{content_hash("q"): (1, 2)}] and report.dropped == {"the reward is missing": 1}
    assert groups(read_log(folder, reward_column="acc")[0]) == [{content_hash("q"): (2, 3)}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input": None}, "`input` is missing"),
        ({"step": "one"}, "`step` is not a whole number"),
        ({"score": "good"}, "`score` is not a finite number"),
        ({"score": float("inf")}, "`score` is not a finite number"),
        ({"uid": 7}, "`uid` is not text"),
    ],
)
def test_malformed_rows(tmp_path, change, reason):
    rows = [entry(1, f"x_{j}_0", "q", 1.0) for j in range(3)]
    folder = write(tmp_path / "d", {1: [rows[0], {**rows[1], **change}, rows[2]]})
    with pytest.raises(LogFormatError, match=f"1.jsonl, line 2: {reason}"):
        read_log(folder)
    log, report = read_log(folder, on_error="skip")
    assert log.rollouts.tolist() == [2] and report.malformed_rows == 1


def test_validation_dumps_are_recognised(tmp_path):
    rows = {s: [entry(s, f"{s}{q}_{j}_0", q, float(j % 2)) for q in "ab" for j in range(8)] for s in (5, 10, 15)}
    log, report = read_log(write(tmp_path / "d", rows))
    assert log.n_steps == 3 and any("validation dump" in n for n in report.notices)


needs_files = pytest.mark.skipif(not FILES.exists(), reason="no files of a real verl run")


@needs_files
@pytest.mark.parametrize("kind", ["rollouts", "validation"])
def test_a_real_run_is_read_as_it_happened(kind):
    log, report = read_log(FILES / kind)
    truth: dict[int, dict[str, tuple[float, int]]] = {}
    for path in (FILES / kind).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            group = truth.setdefault(row["step"], {})
            k, n = group.get(content_hash(row["input"]), (0.0, 0))
            group[content_hash(row["input"])] = (k + (row["score"] > 0), n + 1)
    assert groups(log) == [truth[s] for s in sorted(truth)] and report.malformed == {}
    if kind == "rollouts":
        assert len(set(log.rollouts.tolist())) > 1  # adaptive groups


@needs_files
def test_damaged_copies_of_a_real_run(tmp_path):
    source = sorted((FILES / "rollouts").glob("*.jsonl"))[0]
    data = source.read_bytes()
    rows = data.count(b"\n")
    target = tmp_path / source.name
    for length in range(200, len(data), max(1, len(data) // 23)):
        target.write_bytes(data[:length])
        log, report = read_log(target, on_error="skip")
        assert log.rollouts.sum() + report.malformed_rows >= data[:length].count(b"\n")
        assert report.malformed_rows <= 1 and log.rollouts.sum() <= rows
    half = bytearray(data)
    half[len(half) // 2 : len(half) // 2 + 40] = b"\x00" * 40
    target.write_bytes(bytes(half))
    with pytest.raises(LogFormatError, match="must be JSON"):
        read_log(target)
    assert read_log(target, on_error="skip")[1].malformed_rows in (1, 2)
