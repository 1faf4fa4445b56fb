"""What operators give a router: API keys, an access log, trace ids, certificates, and an end that clients are told of."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from denvweb.core.errors import InvalidError
from denvweb.core.ids import Credential, new_credential
from fleets.domain.allowance import Allowance
from fleets.domain.protocol import ApiKey, RouterTable
from fleets.router.app import App
from fleets.router.config import Config
from fleets.router.processes import argv_of
from fleets.router.tracing import Tracer, trace_id_of
from tests.integration.fake_engine import FakeEngine, engines
from tests.integration.router_bench import STAGE, Bench, Raw, chat, message, pd_unit, plain_unit, router, table

LONG = "word " * 4000
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _keyed(engine: FakeEngine, *keys: ApiKey, generation: int = 1) -> RouterTable:
    return replace(table(plain_unit([engine]), generation=generation), keys=keys, keys_required=True)


def _key(client: str = "acme", **limits: int) -> tuple[Credential, ApiKey]:
    credential = new_credential("key")
    return credential, ApiKey(credential.id, client, credential.secret_hash, Allowance(**limits))


def _bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def test_only_keys_of_the_table_are_let_in_and_none_reaches_an_engine(tmp_path: Path) -> None:
    good, key = _key()
    async with engines("a") as (a,), router(tmp_path, _keyed(a, key)) as bench:
        for headers in ({}, _bearer("key-none.secret"), _bearer(f"{good.id}.wrong"), {"authorization": f"Basic {good.text}"}):
            refused = await bench.ask(chat(), headers=headers)
            assert (refused.status, refused.json["error"]["code"]) == (401, "invalid_api_key")
        assert (await bench.get("/v1/models")).status == 401
        assert (await bench.get("/health")).status == 200 and 'denv_router_refused_total{reason="unauthorized"} 5' in (
            await bench.get("/metrics")
        ).body.decode()
        assert not a.posts
        assert (await bench.ask(chat(), headers={**_bearer(good.text), "x-mine": "1"})).status == 200
        assert "authorization" not in a.posts[0].headers and a.posts[0].headers["x-mine"] == "1"


async def test_a_key_that_is_revoked_or_expired_ends_on_a_connection_that_is_kept(tmp_path: Path) -> None:
    good, key = _key()
    async with engines("a") as (a,), router(tmp_path, _keyed(a, key)) as bench:
        raw = await bench.connect()
        request = message(chat(stream=False), headers=_bearer(good.text))
        assert (await _again(raw, request)).status == 200
        bench.app.table.take(_keyed(a, replace(key, expires_at=1.0), generation=2), keep=False)
        assert "expired" in (await _again(raw, request)).json["error"]["message"]
        bench.app.table.take(_keyed(a, generation=3), keep=False)
        assert (await _again(raw, request)).status == 401
        bench.app.table.take(replace(_keyed(a, generation=4), keys_required=False), keep=False)
        assert (await _again(raw, request)).status == 200 and a.posts[-1].headers["authorization"] == f"Bearer {good.text}"


async def _again(raw: Raw, request: bytes) -> Any:
    raw.writer.write(request)
    return await raw.read_answer()


async def test_each_key_has_limits_of_its_own(tmp_path: Path) -> None:
    (small, few), (large, many) = _key("small", requests_per_min=2), _key("large", at_once=1)
    async with engines("a") as (a,), router(tmp_path, _keyed(a, few, many)) as bench:
        statuses = [(await bench.ask(chat(), headers=_bearer(small.text))).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = await bench.ask(chat(), headers=_bearer(small.text))
        assert refused.json["error"]["code"] == "rate_limit_exceeded" and 1 <= int(refused.headers["retry-after"]) <= 30
        hung = await bench.connect()
        hung.writer.write(message(chat("DSLOW"), headers=_bearer(large.text)))
        await a.next_post(3)
        assert (await bench.ask(chat(), headers=_bearer(large.text))).status == 429
        a.release.set()
        assert (await hung.read_answer()).status == 200
        assert (await bench.ask(chat(), headers=_bearer(large.text))).status == 200
        assert "errors" not in bench.counters()  # a limit is no failure of the service


async def test_processes_of_one_port_share_the_limits(tmp_path: Path) -> None:
    assert "--peers 4 --peer-index 1" in " ".join(argv_of(Config(stage=STAGE, processes=4), [], 1, "/board"))
    good, key = _key(requests_per_min=8)
    async with engines("a") as (a,), router(tmp_path, _keyed(a, key), peers=4) as bench:
        assert [(await bench.ask(chat(), headers=_bearer(good.text))).status for _ in range(3)] == [200, 200, 429]


async def test_the_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    good, key = _key()
    path = tmp_path / "logs" / "access.jsonl"
    async with engines("p", "d") as (p, d):
        first = replace(table(pd_unit([p], [d])), keys=(key,), keys_required=True)
        async with router(tmp_path, first, access_log=str(path)) as bench:
            headers = {**_bearer(good.text), "x-request-id": "abc", "traceparent": PARENT}
            assert (await bench.ask(chat(LONG), headers=headers)).status == 200
            assert p.posts[0].headers["traceparent"] == d.posts[0].headers["traceparent"] == PARENT
            await bench.ask(chat())
            bench.app.reload()
            path.rename(path.with_suffix(".1"))
            bench.app.reload()
            await bench.ask(chat("D500"), headers=_bearer(good.text))
        served, refused = (json.loads(line) for line in path.with_suffix(".1").read_text().splitlines())
        (failed,) = (json.loads(line) for line in path.read_text().splitlines())
    assert (served["status"], served["client"], served["request_id"], served["route"]) == (200, "acme", "abc", "remote")
    assert served["trace_id"] == PARENT[3:35] and served["tokens_out"] == 6 and served["unit"] == "u-1"
    assert 0 < served["prefill_ms"] <= served["ttft_ms"] <= served["e2e_ms"]
    assert (refused["status"], refused["error"]) == (401, "invalid_api_key")
    assert (failed["status"], failed["error"], failed["cancelled"]) == (500, "decode", False)


async def test_a_log_that_cannot_be_written_costs_no_request(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a])), access_log=str(tmp_path)) as bench:
        for _ in range(3):
            assert (await bench.ask(chat())).status == 200
            bench.app.pipeline.flush()
        assert (
            bench.app.pipeline.lines_lost == 0
            and "denv_router_access_log_lines_lost_total 0" in (await bench.get("/metrics")).body.decode()
        )


async def test_a_span_for_each_request_with_its_phases_between_client_and_engines(tmp_path: Path) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        bench.app.pipeline.tracer = Tracer(stage=STAGE, provider=provider)
        await bench.ask(chat(LONG), headers={"traceparent": PARENT})
        await bench.ask(chat("D500"))
    named = {span.name: span for span in spans.get_finished_spans()[:6]}
    root = named["POST /v1/chat/completions"]
    assert set(named) == {root.name, "queue", "prefill", "kv-transfer", "first-step", "stream"}
    assert root.parent is not None and f"{root.parent.span_id:016x}" == PARENT[36:52]
    assert f"{root.context.trace_id:032x}" == PARENT[3:35]
    passed_on = f"00-{PARENT[3:35]}-{root.context.span_id:016x}-01"
    assert p.posts[0].headers["traceparent"] == d.posts[0].headers["traceparent"] == passed_on
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in named.values() if span is not root)
    assert root.attributes is not None and root.attributes["denv.route"] == "remote"
    assert spans.get_finished_spans()[-1].status.description == "decode"


def test_what_is_no_trace_parent_gives_no_trace_id() -> None:
    assert trace_id_of(PARENT.encode()) == PARENT[3:35]
    assert not any(trace_id_of(text) for text in (b"", b"00-xyz", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", PARENT.encode()[:-1]))


def _certificate(folder: Path, name: str) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = datetime.now(UTC) - timedelta(hours=1)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    built = built.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(start + timedelta(days=1))
    signed = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(private)
    return str(folder / "cert.pem"), str(folder / "key.pem")


async def test_clients_speak_https_and_a_new_certificate_is_taken_up_at_once(tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path, "one.example")
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a])), tls_cert=cert, tls_key=key) as bench:
        assert bench.app.url.startswith("https://")
        answer = await _ask_tls(bench, cert, "one.example")
        assert answer.status == 200 and answer.events[-1] == "[DONE]"
        _certificate(tmp_path, "two.example")
        bench.app.reload()
        assert (await _ask_tls(bench, cert, "two.example")).status == 200
        (tmp_path / "cert.pem").write_text("not a certificate")
        bench.app.reload()  # the one in use stays
        with pytest.raises(InvalidError, match="cannot be used"):
            App(Config(stage=STAGE, tls_cert=cert, tls_key=key))


async def _ask_tls(bench: Bench, cert: str, name: str) -> Any:
    context = ssl.create_default_context(cafile=cert)
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.app.port, ssl=context, server_hostname=name)
    writer.write(message(chat()))
    answer = await Raw(reader, writer).read_answer()
    writer.close()
    return answer


async def test_a_stream_that_outlives_the_router_is_told_so(tmp_path: Path) -> None:
    async with engines("a") as (a,):
        async with router(tmp_path, table(plain_unit([a]))) as bench:
            raw, waiting = [Raw(*await asyncio.open_connection("127.0.0.1", bench.app.port)) for _ in range(2)]
            raw.writer.write(message(chat("DPAUSE")))
            await raw.reader.readuntil(b" three")
            waiting.writer.write(message(chat("DHANG")))
            hung = await a.next_post(2)
        rest = await raw.reader.read()
        assert b"the router is being stopped" in rest and b"stream_cut" in rest and rest.endswith(b"0\r\n\r\n")
        assert (await waiting.read_answer()).status == 503
        await asyncio.wait_for(hung.ended.wait(), 5)
        raw.writer.close()
        waiting.writer.close()
