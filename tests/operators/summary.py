"""What came of all trials, counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.operators.catalogue import all_operators, operators
from tests.operators.exceptions import EXCEPTIONS
from tests.operators.trials import DRAWN, HALF, TRIED_IN_HALF, Trial, refusals, with_variance, without_variance


@dataclass
class Summary:
    """Counts of trials: the verdicts, the exceptions by reason, and all that must not be."""

    operators: set[str] = field(default_factory=set)
    samples: set[tuple[str, str, int]] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[Trial] = field(default_factory=list)

    def count(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self.operators.add(trial.operator.name)
            self.samples.add((trial.operator.name, trial.dtype, trial.sample))
            if trial.verdict.verdict == "left out":
                self.left_out[trial.verdict.detail] += 1
            elif trial.agrees:
                self.verdicts[trial.verdict.verdict] += 1
            elif trial.exception is not None:
                self.verdicts["without a rule" if trial.verdict.verdict == "missing" else "excepted"] += 1
                self.reasons[trial.exception.reason] += 1
            else:
                self.verdicts["wrong"] += 1
                self.wrong.append(trial)

    @property
    def calls(self) -> int:
        return sum(self.verdicts.values())


def summaries(most: int | None = None, done: Callable[[str], None] = lambda name: None) -> dict[str, Summary]:
    """Run all trials, or those of the first samples of each operator."""
    found = {title: Summary() for title in ("without variance", "refused by torch", "against draws")}
    for operator in operators():
        found["without variance"].count(without_variance(operator, most))
        if operator.name in TRIED_IN_HALF:
            found["without variance"].count(without_variance(operator, most, HALF))
        found["refused by torch"].count(refusals(operator))
        found["against draws"].count(with_variance(operator, min(most or DRAWN, DRAWN)))
        done(operator.name)
    return found


def tables(found: dict[str, Summary]) -> Iterator[str]:
    """Yield the lines of the report, in Markdown."""
    yield f"`op_db` has {len(all_operators())} operators; {len(operators())} of them have a rule."
    yield ""
    titles = ("exact", "rounding", "agrees", "both refuse", "excepted", "without a rule", "wrong")
    yield "| | operators | samples | calls | " + " | ".join(titles) + " | left out |"
    yield "|---" * (len(titles) + 5) + "|"
    for title, summary in found.items():
        counts = [summary.verdicts[verdict] for verdict in titles]
        row = (title, len(summary.operators), len(summary.samples), summary.calls, *counts, summary.left_out.total())
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""
    yield "| calls excepted | why |\n|---|---|"
    for each in dict.fromkeys(each.reason for each in EXCEPTIONS):
        yield f"| {sum(summary.reasons[each] for summary in found.values())} | {each} |"
    yield ""
    yield "| calls left out of the draws | why |\n|---|---|"
    for why, count in found["against draws"].left_out.most_common():
        yield f"| {count} | {why} |"
    for summary in found.values():
        for trial in summary.wrong:
            yield f"\n**wrong**: {trial}"
