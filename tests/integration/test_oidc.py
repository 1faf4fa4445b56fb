"""Signing in through an OpenID Connect provider that answers over HTTP: who comes in, as whom, and who does not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from denvweb import throttle
from denvweb.access import roles_of
from denvweb.auth import token_create
from denvweb.models import Grant
from denvweb.oidc import OidcConfig, oidc_from_env, parse_roles
from frontend.models import OidcIdentity
from frontend.oidc import provider as asking
from frontend.oidc.claims import Identity
from frontend.oidc.people import account_for
from metrics.models import Event
from tests.integration.oidc_fake import ANN, CLIENT, SECRET, Provider, new_key, provider_running

pytestmark = pytest.mark.django_db
browser = httpx.Client()


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with provider_running() as here:
        yield here


@pytest.fixture
def provider(running: Provider, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Provider:
    """The provider, honest, and a denv that lets two of its groups in."""
    running.spoil, running.person = {}, dict(ANN)
    running.asked.clear()
    throttle._buckets.clear()
    monkeypatch.setattr(asking, "_providers", {})
    monkeypatch.setattr(asking, "_keys", {})
    roles = parse_roles("{ml-oncall: {ds-flash: operator}, ml-leads: {'*': [deployer, approver]}, guests: }")
    settings.OIDC = OidcConfig(running.url, CLIENT, SECRET, "Example", "openid profile email", "groups", roles, (), False, 3600)
    settings.DEFAULT_ROLE = "none"
    return running


def come_back(client: Client, next_url: str = "/") -> Any:
    """Press the button, be at the provider, come back."""
    away = client.get("/oidc/start", {"next": next_url})
    assert away.status_code == 302, away.content
    return client.get(back_from(away["Location"]))


def back_from(address: str) -> str:
    """What the provider answers the browser with, without host."""
    parts = urlsplit(browser.get(address).headers["location"])
    assert (parts.scheme, parts.netloc, parts.path) == ("http", "127.0.0.1:8080", "/oidc/callback")
    return f"{parts.path}?{parts.query}"


def refusals() -> list[tuple[str, str]]:
    return [(event.evidence["code"], event.actor) for event in Event.objects.filter(kind="change.refused").order_by("seq")]


# ---- who comes in ----


def test_somebody_of_a_group_comes_in_with_its_roles(provider: Provider, client: Client) -> None:
    page = client.get("/login?next=/events").content.decode()
    button = re.search(r'href="(/oidc/start\?next=[^"]+)">Sign in with Example<', page)
    assert button is not None
    away = client.get(button[1])
    asked = parse_qs(urlsplit(away["Location"]).query)
    assert asked["code_challenge_method"] == ["S256"] and "code_verifier" not in asked and SECRET not in away["Location"]
    back = client.get(back_from(away["Location"]))
    assert (back.status_code, back["Location"], back["Cache-Control"]) == (302, "/events", "no-store")
    ann = User.objects.get()
    assert (ann.username, ann.email, ann.is_superuser, ann.has_usable_password()) == ("ann", "ann@example.com", False, False)
    assert roles_of(ann) == {"ds-flash": ["operator"], "*": ["none"]}
    assert client.get("/").status_code == 200
    ends = client.session.get_expiry_date()
    assert 3500 < client.session.get_expiry_age() <= 3600
    client.post("/settings/token-make", {"name": "ci", "days": "30"})  # changes the session
    assert client.session.get_expiry_date() == ends, "it is no longer for being used"
    kinds = list(Event.objects.exclude(kind="token.created").order_by("seq").values_list("kind", "actor"))
    assert kinds == [("account.created", "ann"), ("role.given", "system"), ("session.began", "ann")]
    assert Event.objects.get(kind="session.began").sentence == "ann signed in through Example"


def test_the_session_is_listed_and_revoked_as_others(provider: Provider) -> None:
    here, there = Client(), Client(headers={"user-agent": "Phone/1.0"})
    come_back(here)
    come_back(there)
    assert User.objects.count() == OidcIdentity.objects.count() == 1
    page = here.get("/settings").content.decode()
    ids = re.findall(r'action="/settings/session-end".*?name="id" value="(\w+)"', page, re.DOTALL)
    assert "Phone/1.0" in page and "through Example" in page and len(ids) == 1
    here.post("/settings/session-end", {"id": ids[0]})
    assert there.get("/").status_code == 302 and here.get("/").status_code == 200
    here.post("/logout")
    assert here.get("/").status_code == 302


def test_roles_follow_the_groups_at_each_sign_in_and_those_that_people_gave_stay(provider: Provider) -> None:
    come_back(Client())
    ann = User.objects.get()
    Grant.objects.create(user=ann, model="ds-flash", role="operator", created_by="root")
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    assert "comes with it" in root.get("/access").content.decode()
    taken = root.post("/access/take", {"id": str(Grant.objects.get(group="ml-oncall").pk)}, follow=True).content
    assert b"comes with group ml-oncall at each sign-in" in taken and refusals() == [("role-of-a-group", "root")]
    provider.person |= {"groups": ["ml-leads", "unknown"]}
    come_back(Client())
    assert sorted(Grant.objects.values_list("model", "role", "group")) == [
        ("*", "approver", "ml-leads"), ("*", "deployer", "ml-leads"), ("ds-flash", "operator", ""),
    ]  # fmt: skip
    assert [event.kind for event in Event.objects.order_by("seq")].count("role.taken") == 1
    before = Event.objects.count()
    come_back(Client())
    assert Event.objects.count() == before + 1, "only the sign-in itself"
    provider.person |= {"groups": "guests"}  # some providers send one as a text; this one has no role, and is let in
    assert come_back(Client()).status_code == 302
    assert list(Grant.objects.values_list("group", flat=True)) == [""]


def test_a_provider_that_changed_its_key_is_asked_for_it_again(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    come_back(Client())
    monkeypatch.setattr(provider, "key", new_key())
    monkeypatch.setattr(provider, "kid", "key-2")
    assert come_back(Client()).status_code == 403, "asked a moment ago"
    monkeypatch.setattr(asking, "_KEYS_AGAIN_S", 0.0)
    assert come_back(Client()).status_code == 302
    assert provider.asked.count("/keys") == 2 and provider.asked.count("/.well-known/openid-configuration") == 1


def test_a_client_secret_goes_where_the_provider_wants_it(provider: Provider, client: Client) -> None:
    provider.spoil = {"discovery": {"token_endpoint_auth_methods_supported": ["client_secret_post"]}}
    assert come_back(client).status_code == 302


@pytest.mark.parametrize("asked", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "http://testserver.evil.example/"])
def test_nobody_is_sent_elsewhere_afterwards(provider: Provider, client: Client, asked: str) -> None:
    assert come_back(client, asked)["Location"] == "/"


# ---- accounts that are there already ----


def test_a_name_that_somebody_has_is_not_taken_over(provider: Provider, client: Client) -> None:
    local = User.objects.create_superuser("Ann")
    come_back(client)
    assert User.objects.exclude(pk=local.pk).get().username == "ann-2" and not OidcIdentity.objects.filter(account=local).exists()


@pytest.mark.django_db(transaction=True)
def test_two_first_times_at_once_make_one_account(settings: Any) -> None:
    roles = parse_roles("{ml-oncall: {ds-flash: [operator, deployer]}}")
    config = OidcConfig("https://login.example.com", CLIENT, SECRET, "Example", "openid", "groups", roles, (), False, 3600)
    identity = Identity(config.issuer, "248289761001", "ann", "ann@example.com", frozenset({"ml-oncall"}))
    barrier = Barrier(4)

    def come(_: int) -> int:
        try:
            barrier.wait(20)
            return int(account_for(identity, config).pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(come, range(4)))) == 1
    assert User.objects.count() == OidcIdentity.objects.count() == 1 and Grant.objects.count() == 2
    assert Event.objects.filter(kind="account.created").count() == 1 and Event.objects.filter(kind="role.given").count() == 2


@pytest.mark.parametrize("name", ["system", "nobody", "", None, "a/../b", "b\u202e", "\ud800", "c\0", 7])
def test_nobody_hides_behind_a_name_of_the_journals_own(provider: Provider, client: Client, name: object) -> None:
    provider.person |= {"preferred_username": name}
    come_back(client)
    assert User.objects.get().username in {"system-2", "nobody-2", "ann@example.com", "a-..-b"}


@pytest.mark.parametrize(
    ("allowed", "verified", "superuser", "twice", "linked"),
    [
        (True, True, False, False, True),
        (True, "true", False, False, True),
        (False, True, False, False, False),
        (True, False, False, False, False),
        (True, None, False, False, False),
        (True, True, True, False, False),
        (True, True, False, True, False),
    ],
)
def test_an_address_links_only_where_it_is_verified_and_that_is_allowed(
    provider: Provider, client: Client, settings: Any, allowed: bool, verified: object, superuser: bool, twice: bool, linked: bool
) -> None:
    settings.OIDC = replace(settings.OIDC, link_by_email=allowed)
    provider.person |= {"email_verified": verified}
    owner = User.objects.create_user("annabel", email="ann@example.com", is_superuser=superuser)
    if twice:
        User.objects.create_user("other", email="ANN@example.com")
    come_back(client)
    identity = OidcIdentity.objects.get()
    assert (identity.account == owner, identity.linked) == (linked, linked)
    assert Event.objects.filter(kind="account.linked").count() == linked


def test_who_was_linked_keeps_coming_in_without_a_group(provider: Provider, settings: Any) -> None:
    settings.OIDC = replace(settings.OIDC, link_by_email=True)
    User.objects.create_user("annabel", email="ann@example.com")
    provider.person |= {"groups": []}
    for email in ("ann@example.com", "married@example.com"):  # issuer and subject name a person, and nothing else
        provider.person |= {"email": email}
        assert come_back(Client()).status_code == 302
    assert User.objects.count() == 1


def link(client: Client) -> str:
    """The question that somebody who has signed in with a password is asked, with its token."""
    page = client.get(back_from(client.get("/oidc/start?next=/settings")["Location"])).content.decode()
    found = re.search(r'name="t" value="([^"]+)"', page)
    assert found is not None and "Is ann@example.com you?" in page
    return found[1]


def test_an_account_is_linked_by_hand_and_asked_first(provider: Provider) -> None:
    root, eve = Client(), Client()
    root.force_login(User.objects.create_superuser("root", password="a long password"))
    eve.force_login(User.objects.create_user("eve"))
    provider.person |= {"groups": []}
    token = link(root)
    assert not OidcIdentity.objects.exists(), "another site can bring a browser to the question, and no further"
    for client, told in ((eve, token), (root, token + "x"), (root, "")):
        assert b"Not linked" in client.post("/oidc/link", {"t": told}, follow=True).content
    assert b"from now on" in root.post("/oidc/link", {"t": token}, follow=True).content
    assert b"from now on" in root.post("/oidc/link", {"t": token}, follow=True).content, "pressed twice"
    fresh = Client()
    come_back(fresh)
    assert fresh.get("/api/v1/me").json()["username"] == "root"
    provider.person |= {"groups": ["ml-leads"]}
    assert root.get(back_from(root.get("/oidc/start?next=/settings")["Location"]))["Location"] == "/settings", "nothing to ask"
    assert Grant.objects.filter(user__username="root", group="ml-leads").count() == 2, "and roles are looked up anew"
    provider.person |= {"groups": []}
    told = link(eve)
    assert b"signs in to another account already" in eve.post("/oidc/link", {"t": told}, follow=True).content
    assert [code for code, _ in refusals()] == ["link-bad", "link-bad", "link-bad", "already-linked"]
    row = str(OidcIdentity.objects.get().pk)
    assert eve.post("/settings/oidc-unlink", {"id": row}).status_code == 404
    assert b"no longer" in root.post("/settings/oidc-unlink", {"id": row}, follow=True).content
    denied_again = come_back(Client())
    assert denied_again.status_code == 403 and not OidcIdentity.objects.exists()


def test_the_only_way_in_is_not_unlinked(provider: Provider, client: Client) -> None:
    come_back(client)
    page = client.post("/settings/oidc-unlink", {"id": str(OidcIdentity.objects.get().pk)}, follow=True).content
    assert b"You have no password here" in page and OidcIdentity.objects.exists()
    api = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.get())}"})
    (mine,) = api.get("/api/v1/identities").json()["results"]
    assert (mine["issuer"], mine["who"]) == (provider.url, "ann@example.com")
    assert api.delete(f"/api/v1/identities/{mine['id']}").json()["code"] == "last-way-in"
    assert refusals() == [("last-way-in", "ann")] * 2
    ann = User.objects.get()
    ann.set_password("a long password")
    ann.save()
    assert [api.delete(f"/api/v1/identities/{one}").status_code for one in (mine["id"], mine["id"], "x", "٣")] == [204, 404, 404, 404]
    assert not OidcIdentity.objects.exists() and not Grant.objects.exists()


def test_who_signs_out_is_told_that_the_provider_goes_on(provider: Provider, client: Client) -> None:
    come_back(client)
    page = client.post("/logout", follow=True).content.decode()
    assert 'href="/oidc/logout">Sign out of Example too<' in page and client.get("/").status_code == 302
    away = urlsplit(client.get("/oidc/logout")["Location"])
    assert away.path == "/logout" and parse_qs(away.query) == {
        "client_id": [CLIENT],
        "post_logout_redirect_uri": ["http://127.0.0.1:8080/login"],
    }
    assert Event.objects.latest("seq").sentence == "ann signed out"
    assert "Sign out of" not in client.get("/login").content.decode()


# ---- who does not come in ----


def denied(response: Any, code: str, who: str = "nobody") -> None:
    assert response.status_code == 403, response.content
    assert b'role="alert"' in response.content and "sessionid" not in response.cookies
    assert refusals()[-1] == (code, who)
    assert not User.objects.filter(last_login__isnull=False).exists()


def test_who_is_in_no_group_that_is_let_in_does_not_come_in(provider: Provider, client: Client) -> None:
    for groups in ([], ["strangers"], None, {"ml-oncall": True}, 7):
        provider.person |= {"groups": groups}
        response = come_back(client)
        denied(response, "not-admitted", "ann@example.com")
    assert b"who is not let in here" in response.content and not User.objects.exists()


def test_a_domain_lets_in_verified_addresses_only(provider: Provider, settings: Any) -> None:
    settings.OIDC = replace(settings.OIDC, domains=("example.com",))
    provider.person |= {"groups": [], "email_verified": False}
    denied(come_back(Client()), "not-admitted", "ann")
    provider.person |= {"email_verified": True, "email": "ann@example.com.evil.example"}
    denied(come_back(Client()), "not-admitted", "ann@example.com.evil.example")
    provider.spoil = {"claims": {"email": "eve@example.com", "email_verified": None}, "userinfo": {"email": "eve@evil.example"}}
    denied(come_back(Client()), "not-admitted", "eve@evil.example")  # one word for the address, another for its verification
    provider.spoil = {}
    provider.person |= {"email": "ann@EXAMPLE.com"}
    assert come_back(Client()).status_code == 302
    assert roles_of(User.objects.get()) == {"*": ["none"]}


def test_who_left_every_group_and_whose_account_is_closed_does_not_come_in(provider: Provider) -> None:
    come_back(Client())
    User.objects.update(last_login=None)
    provider.person |= {"groups": []}
    denied(come_back(Client()), "not-admitted", "ann@example.com")
    provider.person |= {"groups": ["ml-oncall"]}
    User.objects.update(is_active=False)
    denied(come_back(Client()), "account-closed", "ann")


NOW = int(time.time())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ({"claims": {"nonce": "of another sign-in"}}, "belongs to another sign-in"),
        ({"claims": {"nonce": None}}, "nonce"),
        ({"claims": {"iss": "https://evil.example"}}, "issuer"),
        ({"claims": {"iss": None}}, "iss"),
        ({"claims": {"aud": "another-program"}}, "Audience"),
        ({"claims": {"aud": None}}, "aud"),
        ({"claims": {"aud": [CLIENT, "another-program"]}}, "for another program"),
        ({"claims": {"azp": "another-program"}}, "for another program"),
        ({"claims": {"exp": NOW - 60}}, "expired"),
        ({"claims": {"exp": None}}, "exp"),
        ({"claims": {"iat": NOW + 3600}}, "not yet valid"),
        ({"claims": {"nbf": NOW + 3600}}, "not yet valid"),
        ({"claims": {"sub": None}}, "sub"),
        ({"claims": {"sub": ""}}, "names nobody"),
        ({"claims": {"sub": "\ud800"}}, "names nobody"),
        ({"alg": "none"}, "alg value is not allowed"),
        ({"alg": "HS256-by-public-key"}, "alg value is not allowed"),
        ({"key": new_key()}, "Signature verification failed"),
        ({"kid": "key-of-somebody-else"}, "none of the provider"),
        ({"id_token": "rubbish"}, "does not hold"),
        ({"userinfo": {"sub": "somebody else"}}, "two different people"),
        ({"told": {"error": "access_denied", "error_description": "<script>"}}, "Example answered access_denied"),
        ({"told": {"code": "made up"}}, "did not take the code: invalid_grant"),
        ({"told": {}}, "sent no code"),
        ({"told": {"code": "x", "iss": "https://evil.example"}}, "Another provider"),
    ],
)
def test_what_the_provider_cannot_have_meant_is_refused(provider: Provider, client: Client, spoil: dict[str, Any], says: str) -> None:
    provider.spoil = spoil
    response = come_back(client)
    denied(response, refusals()[-1][0])
    assert says in Event.objects.get(kind="change.refused").sentence and b"<script>" not in response.content.replace(b"<script src", b"")
    assert not User.objects.exists() and client.get("/").status_code == 302


def test_an_answer_for_another_browser_or_once_more_is_refused(provider: Provider, client: Client) -> None:
    away = client.get("/oidc/start")["Location"]
    path = back_from(away)
    denied(Client().get(path), "state-unknown")  # the one who was sent the link of somebody else's sign-in
    denied(client.get(path.replace("state=", "state=x")), "state-unknown")
    denied(client.get("/oidc/callback"), "state-unknown")
    assert client.get(path).status_code == 302
    assert Client().get(path).status_code == client.get(path).status_code == 403, "it was good once"


def test_a_sign_in_that_took_too_long_or_was_written_by_somebody_else_is_refused(
    provider: Provider, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = back_from(client.get("/oidc/start")["Location"])
    cookie = next(name for name in client.cookies if name.startswith("denv_oidc_"))
    kept = client.cookies[cookie]
    assert (kept["httponly"], kept["samesite"], kept["path"], kept["max-age"]) == (True, "Lax", "/oidc/callback", 600)
    value = kept.value
    client.cookies[cookie] = value.replace(":", "x:", 1)
    denied(client.get(path), "state-unknown")
    client.cookies[cookie] = value
    monkeypatch.setattr("frontend.oidc.flow.GOOD_FOR_S", -1)
    denied(client.get(path), "state-unknown")


def test_it_cannot_be_tried_without_end(provider: Provider, client: Client) -> None:
    codes = [client.get("/oidc/callback?state=x&code=y").status_code for _ in range(60)]
    assert codes.count(429) >= 8 and len(refusals()) == codes.count(403) <= 52
    response = client.get("/oidc/start")
    assert response.status_code == 429 and response.headers["Retry-After"]


# ---- a provider that is not there ----


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys", "/userinfo"])
def test_a_provider_that_is_down_is_said_to_be_and_passwords_still_work(provider: Provider, client: Client, path: str) -> None:
    provider.spoil = {"down": [path]}
    response = client.get("/oidc/start")
    if response.status_code == 302:
        response = client.get(back_from(response["Location"]))
    assert response.status_code == 503 and refusals() == []
    page = response.content.decode()
    assert "Example" in page and "Try again, or sign in with a name and password." in page and "sessionid" not in response.cookies
    User.objects.create_user("bea", password="a long password")
    assert client.post("/login", {"username": "bea", "password": "a long password"}).status_code == 302
    provider.spoil = {}
    assert come_back(Client()).status_code == 302, "and back again at once"


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"token_endpoint": None},
        {"jwks_uri": "file:///etc/passwd"},
    ],
)
def test_a_description_that_does_not_fit_is_not_followed(provider: Provider, client: Client, discovery: dict[str, object]) -> None:
    provider.spoil = {"discovery": discovery}
    assert client.get("/oidc/start").status_code == 503


def test_a_provider_that_nobody_listens_at(provider: Provider, client: Client, settings: Any) -> None:
    settings.OIDC = replace(settings.OIDC, issuer="http://127.0.0.1:9")
    response = client.get("/oidc/start")
    assert response.status_code == 503 and b"Example did not answer: ConnectError. Try again" in response.content


def test_a_wrong_client_secret_is_said_to_be_ours(provider: Provider, client: Client, settings: Any) -> None:
    settings.OIDC = replace(settings.OIDC, client_secret="old")
    response = come_back(client)
    assert response.status_code == 503 and b"its client id or secret is wrong" in response.content


def test_without_a_provider_there_is_no_button_and_no_door(client: Client, settings: Any) -> None:
    settings.OIDC = None
    assert b"oidc" not in client.get("/login").content
    assert client.get("/oidc/start").status_code == client.get("/oidc/callback").status_code == 404


# ---- settings ----


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert oidc_from_env() is None
    (tmp_path / "secret").write_text("s3\n")
    told = {
        "ISSUER": "https://login.example.com/t/",
        "CLIENT_ID": "denv",
        "CLIENT_SECRET_FILE": str(tmp_path / "secret"),
        "DOMAINS": "@Example.com",
    }
    for name, value in told.items():
        monkeypatch.setenv(f"DENV_OIDC_{name}", value)
    monkeypatch.setenv("DENV_OIDC_ROLES", '{"ml": {"*": "viewer"}}')
    config = oidc_from_env()
    assert config is not None and (config.issuer, config.client_secret, config.name) == (
        "https://login.example.com/t/",
        "s3",
        "login.example.com",
    )
    assert config.roles == {"ml": {"*": ("viewer",)}} and config.domains == ("example.com",) and config.session_s == 12 * 3600


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ISSUER", "http://login.example.com"), ("ISSUER", "https://"), ("CLIENT_ID", ""), ("SCOPES", "email"), ("SESSION_HOURS", "0"),
        ("SESSION_HOURS", "1.5"), ("ROLES", "- a"), ("ROLES", "{a: b}"), ("ROLES", "{a: {b: 1}}"), ("ROLES", "{"), ("ROLES", "{1: {}}"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_stop_denv_from_starting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("DENV_OIDC_ISSUER", "https://login.example.com")
    monkeypatch.setenv("DENV_OIDC_CLIENT_ID", "denv")
    monkeypatch.setenv(f"DENV_OIDC_{name}", value)
    with pytest.raises(ValueError, match=f"DENV_OIDC_{name}"):
        oidc_from_env()
