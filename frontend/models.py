"""Tables of the frontend app: who is who in Slack and at the OpenID Connect provider, the Slack app, and what it must not do twice."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class OidcIdentity(models.Model):
    """Somebody at an OpenID Connect provider, and the account here that they sign in to."""

    issuer = models.CharField(max_length=500)
    subject = models.CharField(max_length=255)  # the provider's own name of the person, which it never gives to another
    account = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="oidc_identities")
    linked = models.BooleanField()  # to an account that was there before, so that no rule need let them in
    words = models.CharField(max_length=150)  # their address or name when they were linked, for people to read
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="oidc_identity_once")]

    def __str__(self) -> str:
        return self.words


class SlackApp(models.Model):
    """The one Slack app of this installation. Its secrets are encrypted, and written only."""

    team = models.CharField(max_length=20, unique=True)  # `T0123456789`
    bot_token = models.TextField(blank=True)  # encrypted `xoxb-...`
    signing_secret = models.TextField(blank=True)  # encrypted; what Slack signs its requests with
    app_token = models.TextField(blank=True)  # encrypted `xapp-...`, for Socket Mode only
    updated_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.team


class SlackUser(models.Model):
    """A person's account in Slack; whoever writes from there has the roles of `account`."""

    team = models.CharField(max_length=20)
    user = models.CharField(max_length=20)  # `U0123456789`
    account = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="slack_users")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="slack_user_once")]

    def __str__(self) -> str:
        return f"{self.team}/{self.user}"


class SlackSeen(models.Model):
    """What is good for once: a request's signature, a link's or a button's nonce. The row is made with what it did."""

    digest = models.CharField(primary_key=True, max_length=64)
    at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return self.digest


class SlackThread(models.Model):
    """The message that a rollout's other messages answer to."""

    rollout = models.CharField(max_length=24)
    channel = models.CharField(max_length=24)  # id of the channel in denv
    ts = models.CharField(max_length=40)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "channel"], name="slack_thread_once")]

    def __str__(self) -> str:
        return f"{self.rollout}: {self.ts}"


class SlackReply(models.Model):
    """What is still to be said about a click, after it was acknowledged. Removed once said."""

    url = models.CharField(max_length=500)  # Slack's response_url, good for five replies within half an hour
    payload = models.JSONField()
    tries = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"reply {self.pk}"
