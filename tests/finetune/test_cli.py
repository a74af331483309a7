"""`tidegate finetune`: what it refuses, and that a training that is killed ends in the same adapter."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
from tidegate_engines.finetune import asked, cli, trainer
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.seam import attach
from tidegate_engines.finetune.windows import every


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A folder with a model and data."""
    folder = tmp_path_factory.mktemp("user")
    tiny.model(folder / "model", layers=2)
    tiny.data(folder / "data.jsonl", 9)
    return folder


def words(user, out, *more, **other):
    """A command line, with other values of some arguments."""
    said = {"model": user / "model", "data": user / "data.jsonl", "out": out, "device": "virtual", "batch": 2, **other}
    return [f"--{name.replace('_', '-')}={value}" for name, value in said.items()] + list(more)


DATA = [
    ("no json", ":1: not JSON"),
    ('{"text": "a lamp"}\n{"txt": "a"}', ":2: has to have either 'text' or 'messages'"),
    ('{"text": "a", "messages": []}', ":1: has to have either"),
    ('{"text": "  "}', ":1: 'text' is not a text, or is empty"),
    ('{"text": 7}', ":1: 'text' is not a text"),
    ("[1]", ":1: has to have either"),
    ('{"messages": []}', ":1: 'messages' is not a list, or is empty"),
    ('{"messages": [{"role": "user"}]}', ":1: messages[0] has to have 'role' and 'content'"),
    ("\n \n", "has no line with a sample"),
    ('{"text": "' + "boats " * 50 + '"}', ":1: has 52 tokens, and --length is 40; --truncate cuts it"),
    ('{"messages": [{"role": "user", "content": "a"}]}', ":1: has 'messages', and the model's tokenizer has no chat"),
]


# P-TRAINER-9: what makes no sense costs one line.
@pytest.mark.parametrize(("text", "line"), DATA)
def test_a_data_file_that_does_not_fit_costs_one_line_with_its_place(user, tmp_path, capsys, text, line):
    data = tmp_path / "bad.jsonl"
    data.write_text(text)
    assert cli.main(words(user, tmp_path / "out", data=data, length=40)) == 2
    said = capsys.readouterr().err
    assert line in said and str(data) in said and said.count("\n") == 1, said
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(
    ("lora", "line"),
    [
        ("rank=4", "'rank=4' is none of r=N"),
        ("r=0", "r=0 is not a whole number from 1"),
        ("r=x", "r=x is not"),
        ("r=4,r=8", "r is there twice"),
        ("dropout=1", "dropout=1 is not a share"),
        ("modules=q_prj", "no module is named 'q_prj'; near it: q_proj"),
        ("modules=xyzzy", "no module is named 'xyzzy'; there are q_proj"),
    ],
)
def test_an_adapter_that_makes_no_sense_costs_one_line(user, tmp_path, capsys, lora, line):
    assert cli.main(words(user, tmp_path / "out", lora=lora)) == 2
    assert line in capsys.readouterr().err


def test_a_model_directory_with_something_missing_is_named(user, tmp_path, capsys):
    def said(folder):
        assert cli.main(words(user, tmp_path / "out", model=folder)) == 2
        return capsys.readouterr().err

    assert "is not a directory; a model from a hub" in said(tmp_path / "none")
    half = tmp_path / "half"
    half.mkdir()
    assert f"{half}/config.json: No such file" in said(half)
    (half / "config.json").write_text("{")
    assert "config.json: not JSON" in said(half)
    (half / "config.json").write_text('{"model_type": "gpt2"}')
    assert "model_type is 'gpt2'; llama, mistral, qwen2, qwen3 were tested" in said(half)
    (half / "config.json").write_text('{"model_type": "llama"}')
    assert "has no weights (*.safetensors)" in said(half)
    (half / "model.safetensors").touch()
    assert "has no tokenizer" in said(half)


def test_an_output_that_exists_is_left_alone_and_serve_wants_a_name(user, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    assert cli.main(words(user, tmp_path / "there")) == 2
    assert "there exists; choose another" in capsys.readouterr().err
    assert cli.main(words(user, tmp_path / "out", serve="http://127.0.0.1:1")) == 2
    assert "--serve URL and --name NAME belong together" in capsys.readouterr().err


def test_without_the_library_it_is_not_trained_on_the_virtual_gpu(user, tmp_path, capsys, caplog):
    assert cli.main(words(user, tmp_path / "out", steps=1)) == 2
    assert "the library was not preloaded" in caplog.text
    assert "started with the library and an agent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_each_sample_comes_once_an_epoch_and_a_step_is_the_same_whoever_asks():
    steps = [cli.order(9, 4, 3, step) for step in range(9)]
    flat = sum(steps, [])
    assert [sorted(flat[at : at + 9]) for at in range(0, 36, 9)] == [list(range(9))] * 4
    assert flat[:9] != flat[9:18]
    assert cli.order(9, 4, 3, 5) == steps[5]


# P-TRAINER-9: a training that is killed ends in the same adapter.
def test_a_killed_training_goes_on_and_ends_in_the_same_bytes(user, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trainer, "take", lambda model: attach(model, lambda layers: Machine(layers, forward=every(8))))
    asks = {"steps": 5, "save_every": 2, "lora": "r=4,dropout=0.2", "length": 32}
    assert cli.main(words(user, tmp_path / "calm", "--truncate", **asks)) == 0

    class Killed(BaseException):
        pass

    batch = cli.Run.batch

    def killed(self):
        if self.step == 3:
            raise Killed
        return batch(self)

    monkeypatch.setattr(cli.Run, "batch", killed)
    with pytest.raises(Killed):
        cli.main(words(user, tmp_path / "again", "--truncate", **asks))
    assert [path.name for path in tmp_path.iterdir() if "again" in path.name] == [".again.checkpoint"]
    # Asked for something else it does not go on, and keeps what was.
    assert cli.main(words(user, tmp_path / "again", "--truncate", **{**asks, "rate": 1e-3})) == 2
    assert "is of another training" in capsys.readouterr().err
    monkeypatch.setattr(cli.Run, "batch", batch)
    assert cli.main(words(user, tmp_path / "again", "--truncate", **asks)) == 0
    assert "goes on from step 2" in capsys.readouterr().out
    files = [tmp_path / name / "adapter_model.safetensors" for name in ("calm", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not (tmp_path / ".again.checkpoint").exists()
    config = json.loads((tmp_path / "again/adapter_config.json").read_text())
    assert (config["r"], sorted(config["target_modules"])) == (4, sorted(asked.MODULES))


def test_the_loss_falls_on_what_it_is_shown(user, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trainer, "take", lambda model: attach(model))
    monkeypatch.setattr(cli, "TELL_EVERY", 1)
    data = tmp_path / "one.jsonl"
    data.write_text('{"text": "the tide gate opens while a lamp counts boats"}\n')
    assert cli.main(words(user, tmp_path / "out", data=data, steps=20, rate=1e-2, batch=1)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "  loss " in line]
    losses = [float(line.split("loss ")[1].split()[0]) for line in lines]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 1
    assert torch.isfinite(torch.tensor(losses)).all()
