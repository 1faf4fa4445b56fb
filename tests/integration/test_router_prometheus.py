"""The router's figures for Prometheus: the protobuf page read back by Google's own decoder, beside the text page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from fleets.router.prometheus_native import NATIVE_TYPE, SCHEMA, native_page
from metrics.domain.exposition import LE_S, Family, Kind, text_page
from metrics.domain.histogram import Histogram
from tests.integration.fake_engine import engines
from tests.integration.router_bench import chat, message, pd_unit, router, table

_TYPES = {"double": 1, "int64": 3, "uint64": 4, "string": 9, "message": 11, "uint32": 13, "enum": 5, "sint32": 17, "sint64": 18}
# Field numbers as in prometheus/client_model's metrics.proto; the enum is read as the int32 that it is on the wire.
_PROTO: dict[str, list[tuple[str, int, str, bool, str]]] = {
    "LabelPair": [("name", 1, "string", False, ""), ("value", 2, "string", False, "")],
    "Gauge": [("value", 1, "double", False, "")],
    "Counter": [("value", 1, "double", False, "")],
    "Bucket": [("cumulative_count", 1, "uint64", False, ""), ("upper_bound", 2, "double", False, "")],
    "BucketSpan": [("offset", 1, "sint32", False, ""), ("length", 2, "uint32", False, "")],
    "Histogram": [
        ("sample_count", 1, "uint64", False, ""), ("sample_sum", 2, "double", False, ""), ("bucket", 3, "message", True, "Bucket"),
        ("schema", 5, "sint32", False, ""), ("zero_threshold", 6, "double", False, ""), ("zero_count", 7, "uint64", False, ""),
        ("positive_span", 12, "message", True, "BucketSpan"), ("positive_delta", 13, "sint64", True, ""),
    ],
    "Metric": [
        ("label", 1, "message", True, "LabelPair"), ("gauge", 2, "message", False, "Gauge"), ("counter", 3, "message", False, "Counter"),
        ("histogram", 7, "message", False, "Histogram"),
    ],
    "MetricFamily": [("name", 1, "string", False, ""), ("type", 3, "enum", False, ""), ("metric", 4, "message", True, "Metric")],
}  # fmt: skip


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="io.prometheus.client", syntax="proto2")
    for name, fields in _PROTO.items():
        made = file.message_type.add(name=name)
        for field, number, kind, repeated, of in fields:
            row = made.field.add(name=field, number=number, type=_TYPES[kind], label=3 if repeated else 1)
            if of:
                row.type_name = f".io.prometheus.client.{of}"
            if repeated and not of:
                row.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("io.prometheus.client.MetricFamily"))


FAMILY = _message_class()
LONG = "word " * 4000


def _read(page: bytes) -> dict[str, Any]:
    found = {}
    while page:
        size = shift = 0
        while True:
            byte, page = page[0], page[1:]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        family = FAMILY.FromString(page[:size])
        found[family.name] = family
        page = page[size:]
    return found


def _counts(histogram: Any) -> dict[int, int]:
    """Native bucket -> count, as a Prometheus server unfolds them."""
    counts, at, count, deltas = {}, 0, 0, list(histogram.positive_delta)
    for span in histogram.positive_span:
        at += span.offset
        for _ in range(span.length):
            count += deltas.pop(0)
            counts[at] = count
            at += 1
    assert not deltas
    return counts


@given(st.lists(st.floats(1e-7, 2000), max_size=60))
def test_native_buckets_hold_each_value_within_their_bounds(values: list[float]) -> None:
    histogram = Histogram()
    histogram.record_all(values)
    (family,) = _read(native_page([Family("x_seconds", Kind.HISTOGRAM, [({"unit": "u"}, histogram)])])).values()
    got = family.metric[0].histogram
    counts = _counts(got)
    assert got.schema == SCHEMA and got.sample_count == len(values) == got.zero_count + sum(counts.values())
    assert [bucket.upper_bound for bucket in got.bucket] == list(LE_S) and len(got.positive_span) >= bool(got.zero_count == 0)
    places = sorted(index for index, count in counts.items() for _ in range(count))
    for place, value in zip(places, sorted(value for value in values if value > 1e-6), strict=True):
        assert 2 ** ((place - 1) / 32) / 1.0103 <= value <= 2 ** (place / 32) * 1.0103


def test_both_pages_say_the_same_and_labels_are_escaped() -> None:
    given_ = [Family("a_total", Kind.COUNTER, [({"class": 'a"b\\c\nd'}, 3)]), Family("b", Kind.GAUGE, [({}, 0.5)])]
    text = text_page(given_).decode()
    assert text.splitlines() == ["# TYPE a_total counter", 'a_total{class="a\\"b\\\\c\\nd"} 3', "# TYPE b gauge", "b 0.5"]
    read = _read(native_page(given_))
    assert (read["a_total"].type, read["a_total"].metric[0].counter.value, read["a_total"].metric[0].label[0].value) == (
        0,
        3.0,
        'a"b\\c\nd',
    )
    assert (read["b"].type, read["b"].metric[0].gauge.value) == (1, 0.5)


async def test_the_format_is_the_one_that_is_asked_for(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        await bench.ask(chat(LONG))
        bench.deltas()
        raw = await bench.connect()
        accept = NATIVE_TYPE.decode() + ";q=0.7,text/plain;version=0.0.4;q=0.3"
        raw.writer.write(message(b"", path="/metrics", method="GET", headers={"accept": accept}))
        answer = await raw.read_answer()
        assert answer.headers["content-type"] == NATIVE_TYPE.decode()
        page = _read(answer.body)
        assert page["denv_router_ttft_seconds"].metric[0].histogram.sample_count == 1
        assert (await bench.get("/metrics")).headers["content-type"].startswith("text/plain")
