# In place of Docker Hub's python:…-slim-…: CPython in /usr/local, and pip.
FROM stand-in:bookworm
COPY --from=cpython . /usr/local/
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PIP_CERT=/etc/ssl/machine.crt
RUN --mount=from=wheels,target=/wheels \
    PYTHONPATH="$(echo /wheels/pip-*.whl)" python -m pip install --no-index --no-compile --force-reinstall /wheels/*.whl
CMD ["python3"]
