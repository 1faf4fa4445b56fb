"""`denv replay`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click

from denvweb.cli.client import Client
from denvweb.cli.names import name_option
from denvweb.cli.output import split_stage
from denvweb.cli.replay.report import Tally, as_dict, as_text
from denvweb.cli.replay.sender import Replay, Target
from denvweb.cli.replay.trace import TraceRequest, read_trace, schedule
from denvweb.core.errors import ConflictError
from denvweb.core.units import parse_duration_s
from releases.domain.views import StageView

_PROGRESS_EVERY_S = 0.5


class _Seconds(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = parse_duration_s(str(value))
        if not seconds:
            self.fail(f"{value} is no duration; write 60s or 5m", param, ctx)
        return seconds


def find_target(stage: str, endpoint: str, model: str, api_key: str, chat: bool) -> Target:
    """The endpoint of a stage, or the one named."""
    if endpoint:
        if not model:
            raise click.UsageError("--endpoint needs --model")
        return Target(url=endpoint.rstrip("/").removesuffix("/v1"), model=model, api_key=api_key, chat=chat)
    if not stage:
        raise click.UsageError("name where to send it: --stage MODEL/STAGE, or --endpoint URL with --model")
    split_stage(stage)
    view = Client().get(f"stages/{stage}", StageView)
    if not view.endpoint:
        raise ConflictError(f"{stage} has no router that reports; is `denv router --stage {stage}` running?", code="no-router")
    return Target(url=view.endpoint, model=view.model, api_key=api_key, chat=chat)


async def _progress(tally: Tally, duration_s: float | None, began_s: float) -> None:
    while True:
        elapsed_s = time.perf_counter() - began_s
        bar = ""
        if duration_s:
            filled = int(min(1.0, elapsed_s / duration_s) * 24)
            bar = f"[{'#' * filled}{'.' * (24 - filled)}] "
        ttft_s = tally.ttft.quantile(0.5)
        shown = "-" if ttft_s is None else f"{ttft_s * 1000:.0f} ms"
        text = f"{bar}{elapsed_s:4.0f} s  {tally.sent} sent  {tally.inflight} in flight  {tally.failed} failed  ttft p50 {shown}"
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        await asyncio.sleep(_PROGRESS_EVERY_S)


async def _run(
    target: Target, requests: list[TraceRequest], speed: float, duration_s: float | None, loop: bool, quiet: bool
) -> tuple[Tally, float]:
    tally, began_s = Tally(), time.perf_counter()
    show = not quiet and sys.stderr.isatty()
    progress = asyncio.create_task(_progress(tally, duration_s, began_s)) if show else None
    await Replay(target, tally).run(schedule(requests, speed=speed, duration_s=duration_s, loop=loop))
    if progress:
        progress.cancel()
        click.echo("\r\x1b[K", nl=False, err=True)
    return tally, time.perf_counter() - began_s


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@name_option("stage", metavar="MODEL/STAGE", help="Send to this stage's router.")
@click.option("--endpoint", default="", metavar="URL", help="Send to this OpenAI-compatible endpoint instead.")
@click.option("--model", default="", help="The model to ask for, with --endpoint.")
@click.option("--api-key", default="", envvar="OPENAI_API_KEY", help="Bearer key of the endpoint.")
@click.option(
    "--speed", type=click.FloatRange(min=0.001), default=1.0, show_default=True, help="2 sends the trace twice as fast as it was recorded."
)
@click.option("--duration", type=_Seconds(), default=None, help="Stop sending after this time, as in 60s.")
@click.option("--loop", is_flag=True, help="Begin again at the trace's end.")
@click.option("--completions", is_flag=True, help="Ask /v1/completions instead of /v1/chat/completions.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def replay(
    trace: Path, stage: str, endpoint: str, model: str, api_key: str, speed: float, duration: float | None, loop: bool, completions: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Send a recorded trace (Mooncake's JSON lines, Azure's CSV) to an endpoint, open loop, and say what the client saw.

    Prompts are made so that blocks with the same id are the same text: prefixes are shared as in the recorded traffic.
    Exit status 1 when a request failed.
    """
    requests = read_trace(trace)
    target = find_target(stage, endpoint, model, api_key, not completions)
    tally, elapsed_s = asyncio.run(_run(target, requests, speed, duration, loop, as_json))
    body = as_dict(tally, elapsed_s=elapsed_s, endpoint=target.url, model=target.model)
    if as_json:
        import json

        click.echo(json.dumps(body))
    else:
        click.echo(as_text(body))
    sys.exit(1 if tally.failed else 0)
