"""Compose -> data, model, trainer -> fit -> evaluate -> report. The whole of a training run, top to bottom."""

import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import vitocr
from vitocr.config import LENGTH, conf_dir, differences, explain_hydra_error, flatten
from vitocr.cores import usable_cores
from vitocr.errors import UserError

SIZES = ("backbone", "batch_size", "experiment", "init")  # options by which a size is chosen
STARTED = time.monotonic()  # a budget counts from here: the heavy imports come later, inside the functions


def main(argv: list[str] | None = None) -> None:
    """The command line of `train.py` and `vitocr train`; every word is Hydra's."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    typed = list(sys.argv)

    def guarded_job(cfg: Any) -> float | None:
        sys.argv = typed  # Lightning starts the other ranks of a GPU run by what was typed, `vitocr train` included
        try:
            return job(cfg)
        except UserError as error:  # here, because Hydra would print a line of its own first
            fail(str(error))

    if argv is not None:
        sys.argv = [sys.argv[0], *argv]
    # Hydra would print its exceptions itself and exit; this makes it raise, so that ours can be said better.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(guarded_job)()
    except (HydraException, OmegaConfBaseException) as error:
        causes = f"{error}\n{error.__cause__ or ''}"
        fail(explain_hydra_error(causes, default_keys()))


def fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def default_keys() -> list[str]:
    """Every option there is, for near matches."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return list(flatten(OmegaConf.to_container(compose("config"), resolve=False)))


def job(cfg: Any) -> float | None:
    """One run. Returns the validation accuracy (of pretraining, the loss), which is what a sweeper optimises."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    folder, checkpoint = choose_folder(cfg)
    cfg.run_dir = str(folder)
    missing = [str(key) for key in OmegaConf.missing_keys(cfg)]
    if missing:
        raise UserError(f"task={cfg.name} needs {missing[0]}=...: give it on the command line")
    config = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(config, dict)
    typed = list(HydraConfig.get().overrides.task)
    settle_length(config, typed)  # type: ignore[arg-type]
    settle_size(config, typed)  # type: ignore[arg-type]
    return train(config, folder=folder, checkpoint=checkpoint, sweep=sweep)  # type: ignore[arg-type]


def choose_folder(cfg: Any) -> tuple[Path, Path | None]:
    """The run's folder, and the checkpoint that it goes on from."""
    if "VITOCR_RUN_DIR" in os.environ:  # a rank that Lightning launched by running this command again
        folder = Path(os.environ["VITOCR_RUN_DIR"])
        checkpoint = folder / "last.ckpt" if os.environ.get("VITOCR_RESUMING") else None
        return folder, checkpoint
    root = Path("runs") / cfg.name
    if cfg.resume == "auto":
        where = root.glob("*/last.ckpt") if cfg.run_dir is None else Path(cfg.run_dir).glob("last.ckpt")
        unfinished = [path for path in where if not (path.parent / "metrics.json").exists()]
        if unfinished:
            checkpoint = max(unfinished, key=lambda path: path.stat().st_mtime)
            return checkpoint.parent, checkpoint
        print(f"resume=auto: no unfinished run under {cfg.run_dir or root}, so this is a new one")
    elif cfg.resume is not None:
        checkpoint = Path(cfg.resume)
        if checkpoint.is_dir():
            checkpoint = checkpoint / "last.ckpt"
        if not checkpoint.is_file():
            raise UserError(f"resume={cfg.resume}: there is no checkpoint {checkpoint}")
        return checkpoint.parent, checkpoint
    if cfg.run_dir is not None:
        folder = Path(cfg.run_dir)
        if (folder / "last.ckpt").exists():
            raise UserError(f"run_dir={folder} holds a run already: go on with it by resume={folder}, or name another")
        return folder, None
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder, number = root / stamp, 1
    while folder.exists():  # two jobs of a sweep may start within a second
        number += 1
        folder = root / f"{stamp}-{number}"
    return folder, None


def train(config: dict[str, Any], *, folder: Path, checkpoint: Path | None, sweep: bool = False) -> float | None:
    from vitocr import machine

    machine.keep_freed_memory()
    import lightning as L
    import torch

    from vitocr.training import quiet
    from vitocr.training.clock import Clock, parse_seconds

    quiet.lightning()
    if checkpoint is not None:
        check_continuation(config, folder)
    plan = machine.make_plan(config["trainer"], batch_size=config["batch_size"], sweep=sweep)
    torch.set_num_threads(plan.threads)
    first = int(os.environ.get("LOCAL_RANK", 0)) == 0
    say = print_line if first else (lambda message: None)
    say(f"vitocr {vitocr.__version__}: {config['name']}, {describe_plan(plan)}, run folder {folder}")

    from vitocr.training import setup
    from vitocr.training.initialise import start_from

    kit = setup.open_kit(config, plan=plan, say=say)
    L.seed_everything(config["seed"], verbose=False)
    model, description = setup.build(config, kit, plan=plan)
    parameters = sum(p.numel() for p in model.parameters())
    say(f"{setup.name_of(config['backbone'])}, {parameters / 1e6:.2f} M parameters, {kit.summary}")
    start_from(config, model, description, resuming=checkpoint is not None, say=say)
    batches = kit.sizes["train"] // config["batch_size"]
    steps = config["steps"] or (config["epochs"] and round(config["epochs"] * batches))
    budget_s = None if config["budget"] is None else parse_seconds(config["budget"])
    clock = Clock(steps=steps, budget_s=budget_s, started=STARTED if not sweep else time.monotonic())

    trainer, module, feed = setup.build_trainer(config, kit, model, description, clock=clock, plan=plan, folder=folder)
    if first:
        write_config(config, folder)
    os.environ["VITOCR_RUN_DIR"] = str(folder)
    if checkpoint is not None:
        os.environ["VITOCR_RESUMING"] = "1"
    try:
        setup.fit(trainer, module, feed, checkpoint=checkpoint)
    finally:
        for name in ("VITOCR_RUN_DIR", "VITOCR_RESUMING"):
            os.environ.pop(name, None)
    if not trainer.is_global_zero:
        return None
    torch.set_num_threads(usable_cores())
    from vitocr.training.report import report  # matplotlib only now

    return report(folder, kit, say=say, started=STARTED)


def settle_length(config: dict[str, Any], typed: list[str]) -> None:
    """One of budget, epochs and steps: what was typed replaces what the configuration holds."""
    named = [name for name in LENGTH if any(word.lstrip("+").startswith(f"{name}=") for word in typed)]
    counted = named or [name for name in ("steps", "epochs", "budget") if config[name] is not None][:1]
    if len(counted) != 1:
        raise UserError(
            f"{' and '.join(named)} were given: say how long to train by one of budget=, epochs= or steps= "
            "(a budget is wall clock, such as budget=30m)"
        )
    for name in LENGTH:
        if name != counted[0]:
            config[name] = None


def settle_size(config: dict[str, Any], typed: list[str]) -> None:
    """A short run on a slow machine takes the smaller model and batches of `if_slow`: it learns from too few words to
    fill a larger one. Whoever names a size, or something that has one, keeps it."""
    from omegaconf import OmegaConf

    from vitocr import machine
    from vitocr.training.clock import parse_seconds

    small, budget = config.get("if_slow"), config["budget"]
    if not small or budget is None or parse_seconds(budget) >= parse_seconds(small["below"]):
        return
    if any(word.lstrip("+~").startswith(SIZES) for word in typed) or not machine.trains_slowly():
        return
    file = conf_dir() / "backbone" / f"{small['backbone']}.yaml"
    config["backbone"] = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    config["batch_size"] = small["batch_size"]
    print_line(
        f"Less than {small['below']} on a CPU without bf16: backbone={small['backbone']} "
        f"batch_size={small['batch_size']}. Name one of the two to choose yourself, or if_slow=null"
    )


def check_continuation(config: dict[str, Any], folder: Path) -> None:
    """A run goes on with the options it was started with."""
    from omegaconf import OmegaConf

    path = folder / "config.yaml"
    if not path.is_file():
        return
    there = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    differ = differences(there, config)  # type: ignore[arg-type]
    if differ:
        listed = "\n  ".join(differ[:10])
        raise UserError(
            f"the run in {folder} was started with other options:\n  {listed}\n"
            "Give the same options to go on with it, or leave out resume= to start a new run"
        )


def write_config(config: dict[str, Any], folder: Path) -> None:
    from omegaconf import OmegaConf

    from vitocr.checkpoint import atomic_write

    atomic_write(folder / "config.yaml", lambda path: path.write_text(OmegaConf.to_yaml(OmegaConf.create(config))))


def print_line(message: str) -> None:
    print(message, flush=True)


def describe_plan(plan: Any) -> str:
    each = f"{plan.devices} x " if plan.devices > 1 else ""
    threads = f"CPU with {plan.threads} thread{'s' * (plan.threads > 1)}" if plan.accelerator == "cpu" else "GPU"
    return f"{each}{threads}, {plan.precision}"
