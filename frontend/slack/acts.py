"""What somebody in Slack may ask for. Commands and buttons come here, over HTTP and over Socket Mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction

from denvweb.access import Action, access_stage, seen_by
from denvweb.core.errors import ConflictError, DenvError, InvalidError
from denvweb.core.words import meant
from denvweb.logs import proof
from frontend.slack.answers import HELP, done_words, stranger
from frontend.slack.app import use_once
from frontend.slack.blocks import Button
from frontend.slack.people import Caller, account_of, link_url
from metrics.services import refusal_append
from releases.domain.views import RolloutView
from releases.selectors.rollouts import last_rollouts, rollout_view
from releases.selectors.stages import stage_row, stage_view, stages_view
from releases.services import rollouts
from releases.services.access import access_promote

VIA = "slack"


class UnlinkedError(DenvError):
    """Somebody in Slack whom nobody here knows; `detail` holds the link to change that."""

    code = "slack-unlinked"
    http_status = 403


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing asked for. By a command it names a stage, by a button a rollout as somebody saw it."""

    verb: str
    stage: str
    reason: str = ""
    rollout: str = ""
    generation: int | None = None
    nonce: str = ""  # of the message under which the button was


def person_of(caller: Caller, what: str) -> User:
    """The person here; UnlinkedError, which the journal has too."""
    user = account_of(caller)
    if user is None:
        refusal_append(
            what=what, code="slack-unlinked", detail="this Slack account is linked to nobody here", actor=caller.words[:150], via=VIA
        )
        raise UnlinkedError(stranger(link_url(caller)))
    proof.set(f"slack {caller.team}/{caller.user}"[:80])
    return user


def _promote(user: User, wish: Wish) -> str:
    generation = access_promote(user, wish.stage, generation=wish.generation)
    return rollouts.rollout_promote(
        rollout_id=wish.rollout, stage=wish.stage, generation=generation, actor=user.get_username(), via=VIA, reason=wish.reason
    ).pk


def _approve(user: User, wish: Wish) -> str:
    access_stage(user, wish.stage)
    row = stage_row(wish.stage)
    last = last_rollouts([row]).get(row.pk)
    if last is None or last.state != "held" or last.reason != "approval":
        raise ConflictError(f"Nothing of {wish.stage} waits for an approval.", code="not-waiting")
    return _promote(user, wish)


def _pause(user: User, wish: Wish) -> str:
    access_stage(user, wish.stage, Action.PAUSE)
    return rollouts.rollout_pause(rollout_id=wish.rollout, stage=wish.stage, actor=user.get_username(), via=VIA, reason=wish.reason).pk


def _resume(user: User, wish: Wish) -> str:
    access_stage(user, wish.stage, Action.PAUSE)
    return rollouts.rollout_resume(
        rollout_id=wish.rollout, stage=wish.stage, generation=wish.generation, actor=user.get_username(), via=VIA, reason=wish.reason
    ).pk


def _rollback(user: User, wish: Wish) -> str:
    """By a button: whatever the rollout has become, as long as it is the one under way."""
    access_stage(user, wish.stage, Action.ROLL_BACK)
    if wish.rollout:
        return rollouts.rollout_abort(rollout_id=wish.rollout, actor=user.get_username(), via=VIA, reason=wish.reason).pk
    return rollouts.rollback(stage=wish.stage, actor=user.get_username(), via=VIA, reason=wish.reason).pk


VERBS: Mapping[str, Callable[[User, Wish], str]] = {
    "promote": _promote,
    "approve": _approve,
    "pause": _pause,
    "resume": _resume,
    "rollback": _rollback,
}

_WORDS = (*VERBS, "status", "unlink", "help")


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, and the rollout as it stands."""

    sentence: str
    rollout: RolloutView


def fulfil(user: User, wish: Wish) -> Done:
    """Do it within the caller's transaction; what is refused undoes itself, and is written into the journal before the error is raised."""
    try:
        with transaction.atomic():
            if wish.nonce:
                use_once("button", wish.nonce)
            rollout = VERBS[wish.verb](user, wish)
    except DenvError as error:
        what, actor = f"/denv {wish.verb} {wish.stage}", user.get_username()
        refusal_append(what=what, code=error.code, detail=error.detail, actor=actor, via=VIA, stage=wish.stage, rollout=wish.rollout)
        raise
    return Done(done_words(user.get_username(), wish.verb, wish.stage, wish.reason), rollout_view(id=rollout))


def press(user: User, verb: str, button: Button) -> Done:
    """A button, and with it all others of its message: they are good for one use."""
    stage = rollout_view(id=button.rollout).stage
    return fulfil(user, Wish(verb, stage, rollout=button.rollout, generation=button.generation, nonce=button.nonce))


def parse_command(text: str) -> Wish:
    """`rollback ds-flash/prod-us too slow`; InvalidError with how it is written."""
    words = text.split(maxsplit=2)
    verb = words[0].lower() if words else ""
    if verb not in VERBS or len(words) < 2 or "/" not in words[1]:
        raise InvalidError(f"Write {HELP} {meant(verb, _WORDS) if verb not in VERBS else ''}".rstrip(), code="command-unknown")
    return Wish(verb, words[1].strip("`"), words[2][:200] if len(words) > 2 else "")


def status_text(user: User, stage: str) -> str:
    """One stage, or all that the person may see."""
    if stage:
        access_stage(user, stage)
        view = stage_view(stage=stage)
        return f"{view.stage}: {view.sentence}\n{view.preflight.sentence}".strip()
    seen = seen_by(user)
    lines = [f"{view.stage}: {view.sentence}" for view in stages_view() if view.model in seen]
    return "\n".join(lines) or "There are no stages yet."
