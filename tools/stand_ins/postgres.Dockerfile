# In place of Docker Hub's postgres: Debian's version, and an entrypoint that knows three variables.
FROM stand-in:bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/data
RUN rm -rf /var/lib/postgresql/* && install -d -o postgres -g postgres $PGDATA
COPY <<'END' /entrypoint.sh
set -e
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 --encoding=UTF8
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB;" | postgres --single -j postgres
fi
exec postgres -c listen_addresses='*'
END
VOLUME /var/lib/postgresql/data
USER postgres
ENTRYPOINT ["/bin/sh", "/entrypoint.sh"]
