"""The figures of one series over one window: how they add up, and the compact form in which they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from denvweb.core import wire
from metrics.domain.alarm import plus
from metrics.domain.histogram import Histogram
from metrics.domain.split import Split
from metrics.domain.types import AlarmCount, HistogramData, Metric

_flat = wire.decoder(list)


def pack(histogram: Histogram | HistogramData) -> str:
    """`[count,sum,zeros,index,count,index,count,...]` as text.

    Text and not a JSON array, because PostgreSQL would make a decimal of each of the hundreds of numbers.
    """
    flat: list[float] = [histogram.count, histogram.sum, histogram.zeros]
    for pair in histogram.buckets.items():
        flat.extend(pair)
    return wire.encode(flat).decode()


def unpack_into(histogram: Histogram, text: str) -> None:
    """Add what `pack` wrote."""
    flat = _flat(text)
    histogram.count += flat[0]
    histogram.sum += flat[1]
    histogram.zeros += flat[2]
    buckets, pairs = histogram.buckets, zip(flat[3::2], flat[4::2], strict=True)
    if not buckets:  # the first of a sum, which often is the only one: ten times as fast
        buckets.update(pairs)
        return
    for index, count in pairs:
        buckets[index] = buckets.get(index, 0) + count


def unpack_sums_into(histogram: Histogram, text: str) -> None:
    """Add the count and the sums alone, which is all that a mean needs, in a tenth of the time. Its quantiles are wrong from then on."""
    count, total, zeros = text.strip("[]").split(",", 3)[:3]
    histogram.count += int(count)
    histogram.sum += float(total)
    histogram.zeros += int(zeros)


@dataclass(slots=True)
class Figures:
    """Sums that are being added up: windows into windows, windows into what a page shows."""

    counters: dict[str, int] = field(default_factory=dict)
    alarms: dict[str, AlarmCount] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    split: Split = field(default_factory=Split)

    def add(self, other: Figures) -> None:
        """Add other sums."""
        self.add_counters(other.counters)
        self.add_alarms(other.alarms)
        for metric, histogram in other.histograms.items():
            self.histogram(metric).merge(histogram)
        self.split.merge(other.split)

    def add_counters(self, counters: Mapping[str, int]) -> None:
        """Add counts by name."""
        mine = self.counters
        for name, count in counters.items():
            mine[name] = mine.get(name, 0) + count

    def add_alarms(self, alarms: Mapping[str, AlarmCount]) -> None:
        """Add evidence by alarm."""
        for name, count in alarms.items():
            held = self.alarms.get(name)
            self.alarms[name] = count if held is None else plus(held, count)

    def add_histograms(self, histograms: Mapping[Metric, HistogramData]) -> None:
        """Add latencies by metric."""
        for metric, data in histograms.items():
            self.histogram(metric.value).merge(data)

    def add_kept(self, counters: Mapping[str, int], alarms: Mapping[str, Any], histograms: Mapping[str, str], split: str = "") -> None:
        """Add a row as it is kept in the database."""
        self.add_counters(counters)
        self.add_alarms({name: wire.from_plain(plain, AlarmCount) for name, plain in alarms.items()})
        for metric, text in histograms.items():
            unpack_into(self.histogram(metric), text)
        self.split.merge_text(split)

    def histogram(self, metric: str) -> Histogram:
        """The histogram of a metric, made when it is missing."""
        held = self.histograms.get(metric)
        if held is None:
            held = self.histograms[metric] = Histogram()
        return held

    def kept(self) -> tuple[dict[str, int], dict[str, Any], dict[str, str], str]:
        """What goes into the row's four columns."""
        alarms = {name: wire.to_plain(count) for name, count in self.alarms.items()}
        histograms = {metric: pack(histogram) for metric, histogram in self.histograms.items()}
        return self.counters, alarms, histograms, self.split.pack()
