package delta_maintenance;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.*;

/**
 * Commits of Delta Spark on S3 by a conditional put, so that several drivers, delta-rs, Trino and
 * delta-maintenance exclude each other: {@code spark.delta.logStore.s3a.impl} names this class.
 *
 * <p>It needs S3A of Hadoop 3.4.2 or newer, and a store that honours {@code If-None-Match}.
 */
public final class ConditionalPutLogStore extends HadoopFileSystemLogStore {
  private static final String CONDITION = "fs.option.create.conditional.overwrite";
  /** User metadata of each commit, by which maintenance recognises a conditional put. */
  private static final String MARK = "fs.s3a.create.header.delta-log-store";
  private static final int ATTEMPTS = 5;
  private static final Set<URI> PROBED = ConcurrentHashMap.newKeySet();

  public ConditionalPutLogStore(Configuration conf) { super(conf); }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    // The whole content first: actions that fail must not leave a part of a commit.
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    FileSystem store = path.getFileSystem(conf);
    if (!overwrite && !PROBED.contains(store.getUri())) probe(store, path.getParent());
    if (overwrite) publish(store.create(path, true), lines.toByteArray());
    else commit(store, path, lines.toByteArray());
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) { return false; }

  /** Creates the file. A failed condition and a lost answer are settled by reading it back. */
  private static void commit(FileSystem store, Path path, byte[] content) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        create(store, path, content);
        return;
      } catch (IOException failure) {
        Optional<byte[]> existing = read(store, path);
        if (existing.isPresent()) {
          // S3A repeats a request by itself: the condition fails on the file of the first one.
          if (Arrays.equals(existing.get(), content)) return;
          throw new FileAlreadyExistsException(path.toString());
        }
        // After a failed condition, that version was deleted since: others may have read it.
        if (isFailedCondition(failure) || attempt == ATTEMPTS) throw failure;
      }
      // S3 answers 409 while another put of that file is under way.
      java.util.concurrent.locks.LockSupport.parkNanos(100_000_000L << attempt);
    }
  }

  private static void create(FileSystem store, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> file = store.createFile(path);
    file.must(CONDITION, true);
    file.opt(MARK, "conditional-put");
    FSDataOutputStream out;
    try {
      out = (FSDataOutputStream) file.build();
    } catch (IllegalArgumentException | UnsupportedOperationException | PathIOException error) {
      throw new IOException(path + ": no conditional put; use S3A of Hadoop 3.4.2 or newer"
          + " and leave fs.s3a.create.conditional.enabled true", error);
    }
    publish(out, content);
  }

  private static void publish(FSDataOutputStream out, byte[] content) throws IOException {
    try {
      out.write(content);
    } catch (IOException | RuntimeException | Error failure) {
      // Closing would publish a part.
      out.abort();
      throw failure;
    }
    out.close();
  }

  private static Optional<byte[]> read(FileSystem store, Path path) throws IOException {
    try (FSDataInputStream in = store.open(path)) {
      return Optional.of(in.readAllBytes());
    } catch (FileNotFoundException missing) {
      return Optional.empty();
    }
  }

  /** Refuses a store that overwrites an existing file in spite of the condition. */
  private static void probe(FileSystem store, Path directory) throws IOException {
    Path file = new Path(directory, "." + UUID.randomUUID() + ".probe");
    try {
      create(store, file, new byte[] {1});
      create(store, file, new byte[] {2});
    } catch (IOException failure) {
      if (!isFailedCondition(failure)) throw failure;
      PROBED.add(store.getUri());
      return;
    } finally {
      try { store.delete(file, false); } catch (IOException denied) { /* A hidden byte stays. */ }
    }
    throw new IOException(store.getUri() + ": this store ignores If-None-Match, so commits could"
        + " overwrite each other; use one driver with the log store of Delta Lake, or another store");
  }

  private static boolean isFailedCondition(IOException failure) {
    // By name, because this class is built without hadoop-aws.
    return failure.getClass().getSimpleName().equals("RemoteFileChangedException");
  }
}
