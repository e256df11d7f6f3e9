"""Records of steps: as the real server writes them, and what is wrong with others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.simulation.test_command import simulate
from tests.triton.conftest import CAPACITY, MODEL, SLOTS, checkpoint, emitted, repository_spec  # noqa: F401
from trtbuild.errors import BuildError, InputError
from trtbuild.serving.step_log import HEADER
from trtbuild.serving.work import Work
from trtbuild.simulation.measuring import find_model, measure, read_config
from trtbuild.simulation.steps import read_steps
from trtbuild.triton.repository import PACKAGE

START = f"# tiny on nothing\n{HEADER}\n"


def test_the_real_server_is_measured_with_all_its_slots(emitted: Path) -> None:  # noqa: F811
    version = find_model(emitted)
    found = measure(read_config(version), version)
    assert found.about.startswith(f"{MODEL} on ONNX Runtime")
    assert len(found.works) == len(found.seconds) > 1000
    assert {work.answers for work in found.works} >= {0, 1, 2, 4, SLOTS}
    assert any(work.tokens == 64 for work in found.works)  # a whole chunk
    for work in found.works:
        assert work.answers <= SLOTS and work.answers <= work.answered <= work.answers * CAPACITY
        assert work.tokens <= work.positions and work.prompts <= work.tokens <= work.attended


def test_a_model_that_cannot_run_says_why(emitted: Path, tmp_path: Path) -> None:  # noqa: F811
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", emitted, copy], check=True)
    version = find_model(copy)
    (version / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(BuildError, match="No backend of tiny works on this machine"):
        measure(read_config(version), version)
    (version / PACKAGE / "step_log.py").unlink()
    with pytest.raises(InputError, match="records no steps"):
        measure(read_config(version), version)


def test_a_record_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "tiny.csv"
    file.write_text(f"{START}1,8,8,36,0,0,0.0250000\n0,0,0,0,2,24,0.0125\n0,0,0")
    found = read_steps(file)
    assert found.about == "tiny on nothing"
    assert found.works == (Work(1, 8, 8, 36), Work(answers=2, answered=24)) and found.seconds == (0.025, 0.0125)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is no record of steps"),
        ("arrival,prompt\n1,2\n", "is no record of steps"),
        (START, "holds no step"),
        (f"{START}1,2,3\n", r"tiny.csv:3: 3 cells where prompts,.* has 7"),
        (f"{START}0,0,0,0,1,5,0.1\n0,0,0,-1,1,5,0.1\n", "tiny.csv:4: attended is '-1'"),
        (f"{START}0,0,0,0,1,5.5,0.1\n", "tiny.csv:3: answered is '5.5'"),
        (f"{START}0,0,0,0,1,5,nan\n", "tiny.csv:3: seconds is 'nan'"),
        (f"{START}0,0,0,0,1,5,fast\n", "tiny.csv:3: seconds is 'fast'"),
    ],
)
def test_what_is_no_record_is_refused(text: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(text)
    with pytest.raises(InputError, match=wrong):
        read_steps(tmp_path / "tiny.csv")


def test_a_record_from_elsewhere_is_simulated(emitted: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "tiny.csv").write_text(START + "".join(f"1,{n},{n},0,0,0,{n / 100}\n" for n in (1, 2, 4, 8)))
    command = ["--measured", str(emitted), "--requests", "50", "--rate", "1", "--slo", "ttft=1s"]
    result = simulate(*command, "--steps", str(tmp_path / "tiny.csv"), "--json")
    found = json.loads(result.stdout)
    assert found["server"] == "tiny on nothing" and found["fit"]["steps"] == 4
    assert found["seconds"]["prompt's token"] == pytest.approx(0.01)
    (tmp_path / "other.csv").write_text(START.replace("tiny", "other") + "1,1,1,0,0,0,0.01\n")
    other = simulate(*command, "--steps", str(tmp_path / "other.csv"))
    assert other.returncode == 2 and "is of other on nothing, and" in other.stderr
    missing = simulate(*command, "--steps", "missing.csv")
    assert missing.returncode == 2 and "--steps missing.csv cannot be read" in missing.stderr
