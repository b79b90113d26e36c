"""`cfol-fast eval`: the accuracy of a run or a checkpoint in every class, under the attacks that are asked
for.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfol_fast import processes
from cfol_fast.errors import InputError
from cfol_fast.user_input import COUNT, SEED, WHITE, Range, parse_number

if TYPE_CHECKING:
    from torch import nn

    from cfol_fast.data import ImageData
    from cfol_fast.ranks import Ranks
    from cfol_fast.runs.config import TrainConfig

NAME = "eval"
DESCRIPTION = """\
Evaluates a run folder, one of our checkpoints, or the weights of others on the test set, class by class.

examples:
  cfol-fast eval runs/first                             PGD-20 with the run's radius, on the run's data
  cfol-fast eval runs/first --attack pgd,autoattack --state s.json   the worst case of both; resumable
  cfol-fast eval runs/first --checkpoint best-worst     another of its checkpoints
  cfol-fast eval runs/first --active-set --json r.json  fooled examples leave the batch; figures to a file
  cfol-fast eval runs/first --require "worst>=0.3" --require "clean.average>=0.8"   status 1 unless both hold
  cfol-fast eval runs/first --eps 0,2/255,4/255,8/255   accuracy over the radius, in every class
  torchrun --nproc-per-node 8 -m cfol_fast eval runs/first --attack autoattack   on eight GPUs
  cfol-fast eval wrn.pt --model wrn-34-10 --dataset cifar10 --data DIR --normalize none
  cfol-fast eval --pretrained --model timm:resnet18 --dataset folder --data DIR
"""


RADIUS = Range(0, 1e4, whole=False)
SECONDS = Range(1, 1_000_000, whole=False)
SHARE = Range(0, 1, whole=False)
# The attacks of --attack, and what belongs to some of them only.
KINDS = ("pgd", "trades", "fgsm", "autoattack")
BELONGS_TO = {
    "state": ("autoattack",),
    "steps": ("pgd", "trades"),
    "step": ("pgd", "trades"),
    "restarts": ("pgd", "trades"),
    "loss": ("pgd",),
}
GOES_ON = "start it again; with --state FILE AutoAttack continues"


def _radii(text: str) -> list[float]:
    """One radius, or several separated by commas."""
    return sorted({RADIUS(part.strip()) for part in text.split(",")})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN|CHECKPOINT",
        help="a run folder, or a file with weights; may be left out with --pretrained",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help=(
            "which of a run's: best-average (default), best-worst, last, ema-best-average, ema-best-worst,"
            " ema-last or offsets"
        ),
    )
    parser.add_argument(
        "--attack",
        default="pgd",
        metavar="KINDS",
        help=(
            "pgd, autoattack, fgsm, trades or none; several, separated by commas, give the worst case"
            " (default: pgd)"
        ),
    )
    parser.add_argument(
        "--eps",
        type=_radii,
        metavar="EPS",
        help=(
            "radius, such as 8/255 (default: the run's, or the data set's); several, 0,4/255,8/255, give a"
            " curve for every class, and the other figures are those of the largest"
        ),
    )
    parser.add_argument("--steps", type=Range(1, 100_000), metavar="N", help="steps of PGD (default: 20)")
    parser.add_argument(
        "--step", type=RADIUS, metavar="SIZE", help="step size of PGD (default: 2.5 eps / steps)"
    )
    parser.add_argument(
        "--restarts", type=Range(1, 1000), metavar="N", help="starts of PGD, the best is kept (default: 1)"
    )
    parser.add_argument("--norm", choices=("linf", "l2"), help="default: the run's, or linf")
    parser.add_argument("--loss", choices=("ce", "cw", "dlr", "kl"), help="what PGD climbs (default: ce)")
    parser.add_argument(
        "--active-set",
        action="store_true",
        help="fooled examples leave the batch: faster, and the worst iterate counts instead of the last",
    )
    parser.add_argument(
        "--state", metavar="FILE", help="AutoAttack's state: a killed evaluation continues from it"
    )
    parser.add_argument("--dataset", metavar="NAME", help="for weights of others; a run knows its own")
    parser.add_argument("--data", metavar="DIR", help="the folder with the data set's files")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=(
            "for weights of others: torchvision:NAME, timm:NAME or one of ours (ours are recognised by their"
            " layers); a model that is your own code, package.module:factory, has to be named for a run as"
            " well"
        ),
    )
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="instead of a file: the weights that --model's library publishes",
    )
    parser.add_argument(
        "--ema", action="store_true", help="for weights of others: the averaged ones, where a file has both"
    )
    parser.add_argument(
        "--normalize",
        choices=("imagenet", "dataset", "none"),
        help=(
            "for weights of others that do not contain it: what their images were normalised with; none:"
            " pixels from 0 to 1"
        ),
    )
    parser.add_argument(
        "--mean", metavar="M,M,M", help="the same as numbers, one per channel, for pixels from 0 to 1"
    )
    parser.add_argument("--std", metavar="S,S,S", help="belongs to --mean")
    parser.add_argument(
        "--classes-by-position",
        action="store_true",
        help=(
            "take the model's first class for the data's first, whatever their names are (default: the same"
            " names are matched)"
        ),
    )
    parser.add_argument(
        "--limit",
        type=COUNT,
        metavar="N",
        help="only N images of the test set, the same each time, from every class its share",
    )
    parser.add_argument("--batch-size", type=COUNT, default=256, metavar="N", help="default: 256")
    parser.add_argument(
        "--seed", type=SEED, default=0, metavar="S", help="of the attacks' random starts (default: 0)"
    )
    parser.add_argument(
        "--device", default="auto", metavar="DEV", help="auto, cpu, cuda, cuda:1 (default: auto)"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write everything to FILE (the format: docs/evaluation-format.md)"
    )
    parser.add_argument("--csv", metavar="FILE", help="write one row per class to FILE")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="FIGURE>=X",
        help=(
            "exit status 1 unless the robust worst, average, class_average, tail, smooth_worst or a class by"
            " its name is at least X, or 'classes below 0.05 <= N' (clean.worst: without attack; worst.lower:"
            " the lower end of the 95 %% interval); may be given several times"
        ),
    )
    parser.add_argument(
        "--floor",
        type=SHARE,
        default=0.1,
        metavar="SHARE",
        help="accuracy below which a class counts as failing (default: %(default)s)",
    )
    parser.add_argument(
        "--sanity",
        action="store_true",
        help=(
            "also check for masked gradients: more steps, Square and a large radius, in every class; exit"
            " status 1 if a class fails"
        ),
    )
    parser.add_argument(
        "--patience",
        type=SECONDS,
        default=3600.0,
        metavar="SECONDS",
        help=(
            "under torchrun: how long a process waits for another before all end; more than a batch takes"
            " (default: 3600)"
        ),
    )
    parser.add_argument(
        "--white",
        type=WHITE,
        metavar="VALUE",
        help=(
            "white in images with more than 8 bits, e.g. 4095 (default: the run's, or decided by the largest"
            " value of all images)"
        ),
    )
    parser.add_argument("--quiet", action="store_true", help="print no table and no progress")


def run(args: argparse.Namespace) -> int:
    with processes.joined(args.device, args.patience, GOES_ON) as ranks:
        # The others compute their part, and are silent.
        args.quiet = args.quiet or not ranks.is_first
        return _run(args, ranks)


def _run(args: argparse.Namespace, ranks: Ranks) -> int:
    import torch

    from cfol_fast import atomic, data
    from cfol_fast.data.content import copied_test_images
    from cfol_fast.evaluation import evaluate, evaluate_radii, radius_curve, requirements, sanity
    from cfol_fast.evaluation.sharing import one_round
    from cfol_fast.machine import choose_device
    from cfol_fast.progress import Count

    kinds = _kinds(args)
    # On another machine they need not be there.
    ranks.from_first(lambda: _check_outputs(args))
    device = choose_device(args.device)
    if ranks.size > 1 and device.type == "cuda":
        # Each process of a machine has a GPU of its own.
        device = torch.device("cuda", processes.local_rank())
    with one_round(ranks):
        # The first process of a machine reads before the others, which find downloads and caches then.
        subject = _subject(args) if processes.local_rank() == 0 else None
    subject = subject or _subject(args)
    notes = [*subject.bundle.notes, *copied_test_images(subject.bundle)]
    for note in [] if args.quiet else notes:
        print(f"note: {note}", file=sys.stderr)
    images = subject.bundle.test
    if args.limit is not None and args.limit < len(images):
        images = images.subset(data.stratified(images.labels, args.limit))
    source = data.source_of(images, size=subject.bundle.size, device=device)
    attacks = _attacks(args, kinds, subject)
    required = [requirements.parse(text, subject.bundle.classes, bool(attacks)) for text in args.require]
    curve = args.eps is not None and len(args.eps) > 1
    given = {"radii": args.eps, "attack": attacks} if curve else {"attack": attacks or None}
    report = (evaluate_radii if curve else evaluate)(
        subject.model.to(device),
        source,
        class_names=subject.bundle.classes,
        classes_by_position=args.classes_by_position,
        batch_size=args.batch_size,
        device=device,
        active_set=args.active_set,
        floor=args.floor,
        progress=None if args.quiet else Count("testing"),
        ranks=ranks,
        **given,
    )
    checks = []
    if args.sanity:
        pgd = next(one for one in attacks if one["kind"] == "pgd")
        checks = sanity.check_gradients(
            subject.model,
            source,
            attack=pgd,
            class_names=subject.bundle.classes,
            classes_by_position=args.classes_by_position,
            batch_size=args.batch_size,
            device=device,
            progress=None if args.quiet else Count("checking gradients"),
            ranks=ranks,
        )
        report.more["sanity"] = [check.to_json() for check in checks]
    report.settings |= {"checkpoint": str(subject.path), "dataset": subject.bundle.name, "limit": args.limit}
    report.settings |= {"data": subject.root, **subject.normalisation()}
    if subject.bundle.white is not None:
        report.settings["white"] = subject.bundle.white
    report.notes += subject.notes
    verdicts = [one.verdict(report) for one in required]
    if verdicts:
        report.more["requirements"] = verdicts
    missed = [one for one in verdicts if not one["met"]]
    failed = [f"{name} ({check.name})" for check in checks for name in check.failures]
    status = 1 if missed or failed else 0
    if not ranks.is_first:
        return status
    if args.json:
        atomic.write_json(Path(args.json).expanduser(), report.to_json())
    if args.csv:
        atomic.write_text(Path(args.csv).expanduser(), report.to_csv())
    if not args.quiet:
        print(report.table())
        if curve:
            print(f"\n{radius_curve.table(report)}")
        if checks:
            print(f"\n{sanity.describe(checks, report.clean.record.count)}")
    # The table has them above its first line.
    for doubt in report.warnings if args.quiet else ():
        print(f"cfol-fast: warning: {doubt['reason']}", file=sys.stderr)
    for one in verdicts:
        if one["note"] and not args.quiet:
            print(f"note: {one['requirement']}: {one['note']}", file=sys.stderr)
    for one in missed:
        print(f"cfol-fast: not met: {one['requirement']}: {one['reason']}", file=sys.stderr)
    if failed:
        print(
            f"cfol-fast: gradients may be masked, the figures too high: {', '.join(failed)}", file=sys.stderr
        )
    return status


def _check_outputs(args: argparse.Namespace) -> None:
    from cfol_fast import atomic
    from cfol_fast.runs.run_folder import check_output

    taken: dict[Path, str] = {}
    for option, path in (("--json", args.json), ("--csv", args.csv), ("--state", args.state)):
        if path is None:
            continue
        place = Path(path).expanduser().resolve()
        if place.is_dir():
            raise InputError(f"{option} {path} is a folder: give the name of a file")
        if not place.parent.is_dir():
            raise InputError(f"{option} {path}: there is no folder {place.parent}")
        check_output(option, Path(path).expanduser())
        if place in taken and not atomic.is_special(place):
            raise InputError(f"{option} and {taken[place]} name one file, {path}: give each its own")
        taken[place] = option


@dataclass
class Subject:
    """What is evaluated: the model, where it comes from, on which data; root: its folder; config: of the run,
    if it is one.

    notes: what is to be known of the figures.
    """

    model: nn.Module
    path: Path
    bundle: ImageData
    root: str | None
    config: TrainConfig | None
    notes: list[str] = field(default_factory=list)

    def normalisation(self) -> dict[str, list[float]]:
        """What the model does to its pixels, for the record."""
        layer = self.model.get_submodule("normalize")
        return {name: getattr(layer, name).flatten().tolist() for name in ("mean", "std")}


def _subject(args: argparse.Namespace) -> Subject:
    from cfol_fast import data, machine
    from cfol_fast.data.classes import order_as_text
    from cfol_fast.data.part_folders import test_folder
    from cfol_fast.evaluation.foreign_weights import load_weights
    from cfol_fast.runs import run_folder
    from cfol_fast.runs.checkpoints import FOLDER
    from cfol_fast.runs.loading import checkpoint_path, is_ours, load, read_label

    if args.pretrained:
        return _published(args)
    if args.what is None:
        raise InputError("what is to be evaluated? Give a run folder or a file, or --pretrained and --model")
    path = checkpoint_path(args.what, args.checkpoint)
    folder = path.parent.parent
    ours = is_ours(path)
    # Beside the weights of others a file of that name is theirs.
    known = ours and path.parent.name == FOLDER and (folder / run_folder.CONFIG).exists()
    config = run_folder.read_config(folder) if known else None
    label = read_label(path) if ours else None
    ours = ours and args.model in (None, label and label.model)
    if ours and args.ema:
        raise InputError(f"{path} is ours: its averaged weights are --checkpoint ema-best-average, not --ema")
    name = args.dataset
    if name is None and ours:
        name = config.data.name if config else label and label.dataset
    if args.data is not None and args.dataset is None and (name is None or data.spec(name).own):
        # Images of one's own may have become FFCV files since.
        name = data.recognised(args.data, usual=name)
    if name is None:
        raise InputError(
            f"{path} does not say which data it is for: give --dataset, and --data DIR where it needs one"
        )

    options: dict[str, Any] = {"root": args.data, "white": args.white}
    if config is not None and config.data.name == name:
        options = {"root": args.data or config.data.root, "size": config.data.size}
        options["skip_corrupt"], options["cache"] = config.data.skip_corrupt, config.data.cache
        options["white"] = config.data.white if args.white is None else args.white
        root = options["root"]
        if config.data.holdout_groups and root is not None and test_folder(Path(root).expanduser()) is None:
            # The test part is made of train/, as the run made it.
            options["holdout_groups"] = config.data.holdout_groups
    where = machine.choose_device(args.device)
    bundle = data.load(name, progress=not args.quiet, source="auto", device=where, **options)
    given = _normalisation(args, bundle)
    if ours and given:
        raise InputError(f"{path} brings its own normalisation: leave out --normalize, --mean and --std")
    if ours:
        model = load(path, model=args.model)
    else:
        shape = (len(bundle.classes), bundle.size[0], bundle.channels)
        mean, std = given.get("mean"), given.get("std")
        model = load_weights(path, args.model, *shape, mean, std, ema=args.ema)
        if label is not None and label.classes is not None:
            model.classes = label.classes  # type: ignore[assignment]
    notes = [] if hasattr(model, "classes") else [order_as_text(bundle.classes)]
    if known and args.data is None and args.dataset is None:
        notes.append(_changed_test(folder, bundle))
    found = [note for note in notes if note]
    return Subject(model, path, bundle, options["root"], config if ours else None, found)


def _changed_test(folder: Path, bundle: ImageData) -> str | None:
    """What to say where the test images are not those that the run was tested on."""
    from cfol_fast.data import content
    from cfol_fast.runs import run_folder
    from cfol_fast.runs.json_files import made_from

    before = (run_folder.read_result(folder) or {}).get("data")
    if not isinstance(before, dict):
        return None
    now = {"test": content.describe_part(bundle.test, bundle.files.get("test")).record}
    with made_from(folder / run_folder.RESULT):
        different = content.differences(before, now)
        if not different:
            return None
        return (
            "the test images are not those that the run was tested on"
            f" ({content.in_words(different, before, now)})"
        )


def _published(args: argparse.Namespace) -> Subject:
    """A library's model with the library's weights; images of a folder get the size that these were trained
    with.
    """
    from cfol_fast import data, machine, models
    from cfol_fast.evaluation.foreign_weights import published_model

    if args.what is not None:
        raise InputError(f"--pretrained takes the place of a file: leave out {args.what}")
    if args.dataset is None and args.data is not None:
        args.dataset = data.recognised(args.data)
    if args.model is None or args.dataset is None:
        raise InputError("--pretrained needs --model (torchvision:NAME or timm:NAME) and --dataset")
    if args.normalize or args.mean or args.std or args.ema:
        raise InputError(
            "published weights bring their normalisation: leave out --normalize, --mean, --std and --ema"
        )
    known = models.published(args.model)
    size = known.image_size if known is not None and args.dataset == "folder" else None
    bundle = data.load(
        args.dataset,
        root=args.data,
        size=size,
        white=args.white,
        progress=not args.quiet,
        source="auto",
        device=machine.choose_device(args.device),
    )
    model = published_model(args.model, len(bundle.classes), bundle.size[0], bundle.channels)
    return Subject(model, Path(args.model), bundle, args.data, None)


def _normalisation(args: argparse.Namespace, bundle: Any) -> dict[str, list[float]]:
    """mean and std as the options give them; empty without options."""
    from cfol_fast.evaluation.foreign_weights import normalisation

    if (args.mean is None) != (args.std is None):
        raise InputError("--mean and --std belong together: give both")
    if args.mean is not None and args.normalize is not None:
        raise InputError("--normalize and --mean say the same twice: give one of them")
    if args.normalize is not None:
        mean, std = normalisation(args.normalize, bundle.channels, (bundle.mean, bundle.std))
        return {"mean": mean, "std": std}
    if args.mean is None:
        return {}
    found = {}
    for name, text in (("mean", args.mean), ("std", args.std)):
        values = [parse_number(part) for part in text.split(",")]
        if not all(0 <= value <= 1 for value in values) or (name == "std" and not all(values)):
            raise InputError(f"--{name} is for pixels from 0 to 1, so its numbers are too, got {text}")
        if len(values) != bundle.channels:
            raise InputError(
                f"--{name} has {len(values)} numbers, the images have {bundle.channels} channel(s)"
            )
        found[name] = values
    return found


def _kinds(args: argparse.Namespace) -> list[str]:
    """The attacks that are asked for; refuses, before anything is read, what none of them would look at."""
    kinds = [kind.strip() for kind in args.attack.split(",") if kind.strip()]
    unknown = [kind for kind in kinds if kind not in KINDS and kind != "none"]
    known = ", ".join([*KINDS, "none"])
    if not kinds:
        raise InputError(f"--attack needs at least one of {known}")
    if unknown:
        raise InputError(f"--attack {unknown[0]!r} is unknown: choose from {known}")
    several = args.eps is not None and len(args.eps) > 1
    if several and "none" in kinds:
        raise InputError("several radii need an attack: leave out --attack none")
    kinds = [kind for kind in kinds if kind != "none"]
    if several and args.state is not None:
        raise InputError("--state belongs to one radius: give --eps a single one")
    if args.sanity and "pgd" not in kinds:
        raise InputError("--sanity checks what PGD found: it needs --attack pgd")
    for name, owners in BELONGS_TO.items():
        # Without an attack its radius, steps and loss do not matter; a state would be expected to be written.
        ignored = (kinds or name == "state") and not set(owners) & set(kinds)
        if getattr(args, name) is not None and ignored:
            raise InputError(
                f"--{name} belongs to --attack {' or '.join(owners)}, got --attack {args.attack}"
            )
    return kinds


def _attacks(args: argparse.Namespace, kinds: list[str], subject: Subject) -> list[dict[str, Any]]:
    from cfol_fast.runs.rules import check_radius

    config = subject.config
    eps = max(args.eps) if args.eps is not None else (config.test.eps if config else None)
    if eps is None:
        eps = subject.bundle.eps
    norm = args.norm or (config.attack.norm if config else "linf")
    shared = {"eps": eps, "norm": norm, "seed": args.seed}
    check_radius("--eps", eps, "--step", args.step, norm)
    climbing = {"steps": args.steps or 20, "step": args.step, "restarts": args.restarts or 1}
    parameters: dict[str, dict[str, Any]] = {
        "pgd": {**shared, **climbing, "loss": args.loss or "ce"},
        "trades": {**shared, **climbing},
        "fgsm": shared,
        "autoattack": {**shared, "state": args.state},
    }
    return [{"kind": kind, **parameters[kind]} for kind in kinds]
