# One image for every program of denv: web, worker, beat, router, agent.
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=2 \
    DJANGO_SETTINGS_MODULE=denvweb.settings \
    DENV_HOME=/var/lib/denv

# The first user of a named volume hands it its owner, so the folder is there before anything is mounted on it.
RUN useradd --system --uid 10001 --home-dir /var/lib/denv --shell /usr/sbin/nologin denv \
    && install --directory --owner=denv --group=denv --mode=0700 /var/lib/denv /var/lib/denv-node

WORKDIR /app
# What denv runs on changes less often than denv.
COPY requirements.lock ./
RUN pip install --no-cache-dir --disable-pip-version-check -r requirements.lock

COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --editable . \
    && python -m compileall -q denvweb releases fleets metrics frontend

USER denv
EXPOSE 8080 8000
CMD ["denv", "--help"]
