# In place of Docker Hub's chrislusf/seaweedfs: its program and its entrypoint, on Debian.
FROM stand-in:bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends gosu wget \
    && ln -s /usr/sbin/gosu /usr/bin/su-exec \
    && useradd --uid 1000 seaweed && install -d -o seaweed -g seaweed /data
COPY --chmod=755 --from=program weed /usr/bin/weed
COPY --chmod=755 --from=program entrypoint.sh /entrypoint.sh
VOLUME /data
WORKDIR /data
ENTRYPOINT ["/entrypoint.sh"]
