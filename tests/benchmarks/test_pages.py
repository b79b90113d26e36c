"""The pages put machines and instruction sets side by side, and never mix them."""

import json
import subprocess
from dataclasses import asdict
from functools import partial

import pytest

from benchmarks import __main__ as command
from benchmarks import machine as facts
from benchmarks import readme
from benchmarks.limit import title_of
from benchmarks.machine import instructions, machine_name
from benchmarks.rows import FASTEST, FOLDED, Row, not_asked
from benchmarks.settings import AVX2, BEST, SETTINGS, environment, limits
from benchmarks.unfinished import Unfinished


def made(cpu, instructions, rows, began="2026-01-01T00:00:00", limits=()):
    machine = {"name": f"{cpu}-{instructions}", "date": began[:10], "began": began, "cpu": cpu, "cores": 2}
    machine |= {"threads": 2, "gpu": None, "instructions": instructions, "limits": dict(limits)}
    versions = {"cfol_fast": "commit abc", "torch": "2"}
    return {"machine": machine, "versions": versions, "questions": [asdict(row) for row in rows]}


def headline_rows(seconds, fastest):
    return [
        Row(name, (against or "a peer") + FASTEST * (not against), seconds, None, seconds, 1.0, fastest)
        for name, against, _ in readme.SPOKEN
    ]


def test_each_file_has_a_column_and_what_it_was_not_asked_stays_empty():
    one, two = Row("a", "x", 2.0, ">= 3", 1.0, 2.0, "n"), Row("b", "y", 4.0, None, 1.0, 4.0, "n")
    text = readme.side_by_side([made("p", "AVX-512", [one]), made("p", "AVX2", [two])])
    assert "| question | against | p, AVX-512 | p, AVX2 |" in text
    assert "| a | x | **2.00x** (>= 3x) |  |" in text
    assert "| b | y |  | 4.00x |" in text


def test_the_fastest_peer_is_each_columns_own():
    rows = [[Row("a", "x" + FASTEST * first, 2.0, None, 1.0, 2.0, "n")] for first in (True, False)]
    text = readme.side_by_side(
        [made("p", name, row) for name, row in zip(("AVX-512", "AVX2"), rows, strict=True)]
    )
    assert f"| a | x | 2.00x{FASTEST} | 2.00x |" in text


def test_a_question_that_could_not_be_asked_says_so_and_misses_nothing():
    row = not_asked("a", "x", ">= 2", "no such processor")
    assert row.reached is None
    assert "| a | x | not asked (>= 2x) |" in readme.side_by_side([made("p", "AVX2", [row])])
    assert "no such processor" in readme.page(made("p", "AVX2", [row]))


def test_the_sentence_has_both_instruction_sets_of_one_machine():
    mine = [made("p", "AVX-512", headline_rows(2.0, "")), made("p", "AVX2", headline_rows(3.0, ""))]
    text = readme.speed(readme.of_the_first_machine([*mine, made("q", "AVX2", headline_rows(5.0, ""))]))
    assert "(p, 2 cores, 2 threads, AVX-512 and AVX2)" in text
    assert text.count("2.00x and 3.00x (fastest peer measured: ") == len(readme.SPOKEN)
    assert "(fastest peer measured: a peer)" in text
    assert "5.00x" not in text


def test_the_machine_measured_last_comes_first_with_all_its_settings(tmp_path):
    files = [
        made("old", "AVX2", [], "2026-01-02T00:00:00"),
        made("new", "AVX2", [], "2026-01-01T00:00:00"),
        made("new", "AVX-512", [], "2026-01-03T00:00:00"),
    ]
    for file in files:
        readme.atomic.write_json(tmp_path / f"{file['machine']['name']}.json", file)
    names = [each["machine"]["name"] for each in readme.stored(tmp_path)]
    assert names == ["new-AVX-512", "new-AVX2", "old-AVX2"]


def numbered(document, family, model):
    document["machine"] |= {"cpu_family": family, "cpu_model": model}
    return document


def test_two_processors_of_one_name_are_told_apart_and_from_files_without_numbers(tmp_path):
    files = {
        "b": numbered(made("p", "AVX-512", headline_rows(2.0, ""), "2026-01-03T00:00:00"), 25, 17),
        "c": numbered(made("p", "AVX2", headline_rows(3.0, ""), "2026-01-03T01:00:00"), 25, 17),
        "d": numbered(made("p", "AVX-512", headline_rows(5.0, "")), 26, 2),
        "e": made("p", "AVX2", headline_rows(7.0, ""), "2026-01-02T00:00:00"),
    }
    for name, file in files.items():
        readme.atomic.write_json(tmp_path / f"{name}.json", file)
    stored = readme.stored(tmp_path)
    table, short = readme.side_by_side(stored), readme.speed(readme.of_the_first_machine(stored))
    first, other = "p (family 25, model 17)", "p (family 26, model 2)"
    assert f"| against | {first}, AVX-512 | {first}, AVX2 | p, AVX2 | {other}, AVX-512 |" in table
    assert "2.00x" in short
    assert "3.00x" in short
    assert not {"5.00x", "7.00x"} & set(short.split())
    assert readme.page(stored[0]).startswith(f"# {first}, 2 cores, AVX-512\n")


def test_a_run_with_fewer_threads_than_cores_is_told_apart():
    fewer = made("p", "AVX2", [])
    fewer["machine"]["threads"] = 1
    text = readme.side_by_side([made("p", "AVX2", []), fewer])
    assert "| question | against | p, AVX2 | p, AVX2, 1 threads |" in text
    assert readme.of_the_first_machine([made("p", "AVX2", []), fewer]) == [made("p", "AVX2", [])]


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """Lets Linux say this of two cores, both with a thread."""

    def says(*lines):
        file = tmp_path / "cpuinfo"
        file.write_text("\n\n".join(["\n".join(lines)] * 2))
        monkeypatch.setattr(facts, "CPUINFO", file)

    monkeypatch.setattr(facts.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(facts, "THREADS", 2)
    monkeypatch.setattr(facts, "instructions", lambda: "AVX-512")
    monkeypatch.setattr(facts.torch.cuda, "is_available", lambda: False)
    return says


EPYC = ("vendor_id\t: AuthenticAMD", "cpu family\t: 25", "model\t\t: 17", "model name\t: AMD EPYC")


def test_a_file_has_the_processors_numbers_in_its_name_and_in_its_facts(processor):
    processor(*EPYC)
    assert machine_name() == "amd-epyc-family-25-model-17-2-cores-avx512"
    found = facts.machine()
    assert (found["cpu"], found["cpu_family"], found["cpu_model"]) == ("AMD EPYC", 25, 17)


def test_a_processor_without_numbers_has_its_name_alone(processor):
    processor("model name\t: Some Processor")
    assert machine_name() == "some-processor-2-cores-avx512"
    assert (facts.machine()["cpu_family"], facts.machine()["cpu_model"]) == (None, None)


def test_a_run_with_fewer_threads_has_a_file_of_its_own(processor, monkeypatch):
    processor(*EPYC)
    monkeypatch.setattr(facts, "THREADS", 1)
    assert machine_name() == "amd-epyc-family-25-model-17-2-cores-1-threads-avx512"


def test_a_file_of_some_questions_alone_does_not_empty_the_short_table(tmp_path):
    whole, some = (
        made("old", "AVX2", headline_rows(2.0, "")),
        made("new", "AVX-512", [], "2026-02-01T00:00:00"),
    )
    beside = made("old", "AVX-512", [], "2026-02-01T00:00:00")
    whole["machine"]["minutes"] = 20.0
    for file in (whole, some, beside):
        readme.atomic.write_json(tmp_path / f"{file['machine']['name']}.json", file)
    first = readme.of_the_first_machine(readme.stored(tmp_path))
    assert [each["machine"]["name"] for each in first] == ["old-AVX2"]


def test_a_page_says_what_limited_the_run():
    limited = made("p", "AVX2", [], limits=SETTINGS[AVX2])
    assert "limited by ONEDNN_MAX_CPU_ISA=AVX2" in readme.page(limited)


def test_a_setting_takes_away_the_limits_of_another():
    assert environment(BEST, {"PATH": "p", **SETTINGS[AVX2]}) == {"PATH": "p"}
    assert environment(AVX2, {"PATH": "p"}) == {"PATH": "p", **SETTINGS[AVX2]}


def test_oneDNNs_own_safeguard_for_bfloat16_is_no_limit():
    assert limits({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}) == {}


@pytest.mark.parametrize("missing", SETTINGS[AVX2])
def test_a_process_limited_in_part_measures_nothing(missing):
    with pytest.raises(SystemExit, match="CFOL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"):
        limits({name: value for name, value in SETTINGS[AVX2].items() if name != missing})


def whole(document, **facts):
    document["machine"] |= {"minutes": 20.0, **facts}
    return document


def test_the_short_table_says_which_instruction_set_was_not_asked_as_a_whole():
    best, limited = made("p", "AVX-512", []), made("p", "AVX2", [], limits=SETTINGS[AVX2])
    told = {"AVX-512: not yet asked as a whole", "limited to AVX2: not yet asked as a whole"}

    def said(*documents):
        return {words for words in told if words[1:] in readme.speed(list(documents))}

    assert said(best, limited) == told
    both = [whole(made("p", "AVX-512", [])), whole(made("p", "AVX2", [], limits=SETTINGS[AVX2]))]
    assert said(*both) == set()
    assert said(both[0], limited) == said(both[0]) == {"limited to AVX2: not yet asked as a whole"}
    assert said(best, both[1]) == said(both[1]) == {"AVX-512: not yet asked as a whole"}
    # A processor without AVX-512 has no other setting.
    assert said(whole(made("p", "AVX2", []))) == set()


def test_the_sentence_says_when_the_fastest_alternative_was_not_measured():
    row = Row("PGD-7, ResNet-18", FOLDED + FASTEST, 1.4, None, 1.0, 1.4, "n")
    assert "not measured yet" in readme.speed([made("p", "AVX2", headline_rows(2.0, ""))])
    assert "not measured yet" not in readme.speed([made("p", "AVX2", [row])])


def test_the_sentence_leaves_out_what_one_setting_was_not_asked():
    text = readme.speed([made("p", "AVX-512", headline_rows(2.0, "")), made("p", "AVX2", [])])
    assert text.count("2.00x (fastest peer measured: ") == len(readme.SPOKEN)


@pytest.fixture
def pages(monkeypatch, tmp_path):
    """Empty pages and an empty folder of results."""
    results, here, project = tmp_path / "results", tmp_path / "here.md", tmp_path / "project.md"
    results.mkdir()
    for path, names in ((here, ("table", "profile", "pictures")), (project, ("speed",))):
        text = "\n".join("\n".join(readme.marks(name)) for name in names)
        path.write_text(f"{readme.MISSED}\n- **a**: slow\n## Next\n{text}")
    monkeypatch.setattr(readme, "RESULTS", results)
    monkeypatch.setattr(readme, "stored", partial(readme.stored, results))
    monkeypatch.setattr(readme, "HERE", here)
    monkeypatch.setattr(readme, "PROJECT", project)
    monkeypatch.setattr(command, "RESULTS", results)
    monkeypatch.setattr(command, "FOLDER", tmp_path / "unfinished")
    monkeypatch.setattr(command, "profile", lambda cache: "where the time goes")
    return tmp_path


def test_a_whole_run_writes_its_file_and_pages_that_agree_with_it(pages, monkeypatch):
    monkeypatch.setattr(command, "ask", lambda question, tiny, cache: headline_rows(2.0, question))
    assert command.under_this_setting([], tiny=False) == 0
    (file,) = (pages / "results").glob("*.json")
    document = json.loads(file.read_text())
    assert file.stem == document["machine"]["name"] == machine_name()
    assert document["machine"]["instructions"] == instructions()
    assert file.with_suffix(".md").read_text() == readme.page(document)
    assert "where the time goes" in (pages / "here.md").read_text()
    assert readme.speed([document]) in (pages / "project.md").read_text()


def test_a_question_that_fails_does_not_stop_the_others(pages, monkeypatch, capsys):
    def ask(question, tiny, cache):
        if question == "pgd":
            raise subprocess.CalledProcessError(3, "pgd")
        return headline_rows(2.0, question)

    monkeypatch.setattr(command, "ask", ask)
    assert command.under_this_setting(["pgd", "epoch"], tiny=False) == 1
    assert "pgd (status 3)" in capsys.readouterr().err
    (file,) = (pages / "results").glob("*.json")
    assert len(json.loads(file.read_text())["questions"]) == len(readme.SPOKEN)


def test_a_run_that_stopped_asks_only_what_it_has_no_answer_to(pages, monkeypatch):
    asked, broken = [], {"epoch"}

    def ask(question, tiny, cache):
        asked.append(question)
        (cache / "cfol_fast").mkdir(exist_ok=True)
        (cache / "cfol_fast" / "choices-1.json").write_text('{"choices": {"a layer": "fused"}}')
        if question in broken:
            raise subprocess.TimeoutExpired("epoch", 1)
        return [Row(question, "x", 1.0, None, 1.0, 1.0, "n")]

    monkeypatch.setattr(command, "ask", ask)
    assert command.under_this_setting([], tiny=False) == 1
    (file,) = (pages / "results").glob("*.json")
    assert "epoch" not in file.read_text()
    assert "minutes" not in json.loads(file.read_text())["machine"]
    broken.clear()
    asked.clear()
    assert command.under_this_setting([], tiny=False) == 0
    assert asked == ["epoch"]
    whole = json.loads(file.read_text())
    assert [row["name"] for row in whole["questions"]] == list(command.QUESTIONS)
    assert all(row["note"] == "n" for row in whole["questions"])
    assert whole["choices"] == {"a layer": "fused"}
    assert "chose, how often: fused 1." in file.with_suffix(".md").read_text()
    assert not (pages / "unfinished" / machine_name()).exists()


def test_a_run_with_other_packages_is_not_continued(pages, monkeypatch):
    folder = pages / "unfinished"
    Unfinished(folder).add("pgd", [Row("a", "x", 1.0, None, 1.0, 1.0, "n")], 2.0)
    assert Unfinished(folder).seconds("pgd") == 2.0
    monkeypatch.setattr("benchmarks.unfinished.versions", lambda: {"cfol_fast": "commit a", "torch": "0"})
    assert Unfinished(folder).seconds("pgd") is None


def test_a_row_of_a_later_commit_says_so(tmp_path, monkeypatch):
    run = Unfinished(tmp_path / "run")
    monkeypatch.setattr("benchmarks.unfinished.commit", lambda: "commit later")
    run.add("pgd", [Row("a", "x", 1.0, None, 1.0, 1.0, "n")], 2.0)
    assert run.document(("pgd",), "")["questions"][0]["note"] == "n; asked at commit later"


def test_a_missed_target_needs_a_paragraph():
    missed = made("p", "AVX2", [Row(name, "x", 1.0, ">= 2", 1.0, 1.0, "n") for name in ("a, b", "c")])
    page = f"{readme.MISSED}\n- **a**: slow\n## Next\n- **c**"
    assert readme.unexplained([missed], page) == ["p, AVX2: c, against x: 1.00x (>= 2x)"]


def test_a_whole_runs_missed_target_needs_a_paragraph_with_its_ratio():
    rows = [Row("a, b", "x", ratio, "<= 0.001", 1.0, 1.0, "n") for ratio in (1.07, 0.0025)]
    run = whole(made("p", "AVX2", rows), seconds={"pgd": 1.0})

    def missing(*paragraphs):
        page = "".join(f"\n- {paragraph}" for paragraph in paragraphs)
        return [
            line.split(": ")[-1].split(" (")[0] for line in readme.unexplained([run], readme.MISSED + page)
        ]

    assert missing("**a**: 11.07x, 1.075x, 0.25 %") == ["1.07x"]
    assert missing("**a**: slow", "**c**: 1.07x") == ["1.07x", "0.25 %"]
    assert missing("**a**, old: slow", "**c** and\n  **a**: **1.07x** of 1x, and 0.25\n  % of 0.1 %") == []


def test_a_paragraph_on_the_attack_does_not_explain_its_limit():
    missed = made("p", "AVX2", [Row(title_of("PGD-7, ResNet-18"), "x", 1.2, "<= 1.06", 1.0, 1.0, "n")])
    assert readme.unexplained([missed], f"{readme.MISSED}\n- **PGD-7**: slow") != []


def test_a_run_lists_what_it_missed_with_ratio_and_target(pages, monkeypatch, capsys):
    rows = [Row("a, b", "x", 1.07, ">= 1.25", 1.0, 1.0, "n"), Row("c", "y", 2.0, ">= 1", 1.0, 1.0, "n")]
    monkeypatch.setattr(command, "QUESTIONS", ("pgd",))
    monkeypatch.setattr(command, "ask", lambda question, tiny, cache: rows)
    assert command.under_this_setting([], tiny=False) == 0
    (missed,) = [line for line in capsys.readouterr().out.splitlines() if "against" in line]
    assert missed.endswith(": a, b, against x: 1.07x (>= 1.25x)")


def test_a_comma_inside_a_number_does_not_end_the_beginning_of_a_rows_name():
    missed = made("p", "AVX2", [Row("growth to 10,000, all", "x", 2.0, "<= 1", 1.0, 1.0, "n")])
    assert readme.unexplained([missed], f"{readme.MISSED}\n- **growth to 10**: slow") != []
    assert readme.unexplained([missed], f"{readme.MISSED}\n- **growth to 10,000**: slow") == []


def test_each_setting_is_asked_in_a_process_with_its_environment(monkeypatch):
    given = []

    def run(command, env, **rest):
        given.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(command.subprocess, "run", run)
    assert command.under_settings([BEST, AVX2], ["pgd"], tiny=True) == 0
    assert [limits(env) for env in given] == [{}, SETTINGS[AVX2]]
