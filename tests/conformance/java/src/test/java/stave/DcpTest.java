package stave;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.SeqnoAdvanced;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.kv.GetOptions;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.UpsertOptions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** A full copy and a live tail of a bucket by Couchbase's own DCP client. */
class DcpTest {
  private static Cluster cluster;
  private static Collection collection;

  @BeforeAll
  static void connect() {
    cluster = StrictCopy.connect();
    cluster.bucket(StrictCopy.env("STAVE_BUCKET")).waitUntilReady(Duration.ofSeconds(20));
    collection = cluster.bucket(StrictCopy.env("STAVE_BUCKET")).defaultCollection();
  }

  @AfterAll
  static void disconnect() {
    cluster.disconnect();
  }

  /** Only documents whose keys begin in one way. */
  private static final class Copy extends StrictCopy {
    private final String prefix;

    Copy(String prefix) {
      this.prefix = prefix;
    }

    @Override
    void keep(DocumentChange change) {
      if (change.getKey().startsWith(prefix)) {
        changes++;
        documents.put(change.getKey(), change);
      }
    }

    @Override
    public synchronized void onSeqnoAdvanced(SeqnoAdvanced advanced) {
      advance(advanced.getVbucket(), advanced.getOffset().getSeqno());
      notifyAll();
    }

    /** Document by document, against what the bucket says. */
    synchronized void sameAsBucket(List<String> keys) {
      int there = 0;
      for (String key : keys) {
        DocumentChange copied = documents.get(key);
        try {
          GetResult document =
              collection.get(key, GetOptions.getOptions().transcoder(RawBinaryTranscoder.INSTANCE));
          assertTrue(copied != null && copied.isMutation(), key + " is in the bucket only");
          assertArrayEquals(document.contentAs(byte[].class), copied.getContent(), key);
          assertEquals(document.cas(), copied.getCas(), key);
          there++;
        } catch (DocumentNotFoundException gone) {
          assertFalse(copied != null && copied.isMutation(), key + " is in the copy only");
        }
      }
      System.out.println(
          "dcp: " + changes + " changes received, " + there + " documents in bucket and copy, 0 differ");
    }
  }

  private static void write(String key, byte[] value) {
    collection.upsert(key, value, UpsertOptions.upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE));
  }

  private static Map<Integer, Long> seqnos(Client client) {
    Map<Integer, Long> seqnos = new HashMap<>();
    client.getSeqnos().toIterable().forEach(one -> seqnos.put(one.partition(), one.seqno()));
    return seqnos;
  }

  @Test
  void fullCopy() throws Exception {
    String prefix = "java:" + UUID.randomUUID();
    List<String> keys = new ArrayList<>();
    for (int n = 0; n < 2000; n++) {
      keys.add(prefix + n);
      write(prefix + n, new byte[n % 1500]);
    }
    for (int n = 0; n < keys.size(); n += 7) {
      collection.remove(keys.get(n));
    }
    Copy copy = new Copy(prefix);
    try (Client client = StrictCopy.client().build()) {
      client.listener(copy, FlowControlMode.AUTOMATIC);
      client.connect().block(StrictCopy.DEADLINE);
      client.initializeState(StreamFrom.BEGINNING, StreamTo.NOW).block(StrictCopy.DEADLINE);
      Map<Integer, Long> high = seqnos(client);
      client.startStreaming().block(StrictCopy.DEADLINE);
      copy.await("everything arrives", () ->
          high.entrySet().stream().allMatch(one -> copy.seen.getOrDefault(one.getKey(), 0L) >= one.getValue()));
    }
    copy.sameAsBucket(keys);
  }

  @Test
  void liveTail() throws Exception {
    String prefix = "java:" + UUID.randomUUID();
    List<String> keys = new ArrayList<>();
    for (int n = 0; n < 200; n++) {
      keys.add(prefix + n);
    }
    Copy copy = new Copy(prefix);
    try (Client client = StrictCopy.client().build()) {
      client.listener(copy, FlowControlMode.AUTOMATIC);
      client.connect().block(StrictCopy.DEADLINE);
      client.initializeState(StreamFrom.NOW, StreamTo.INFINITY).block(StrictCopy.DEADLINE);
      client.startStreaming().block(StrictCopy.DEADLINE);
      Map<Integer, Long> before = seqnos(client);
      Random random = new Random(1);
      for (int n = 0; n < 5000; n++) {
        String key = keys.get(random.nextInt(keys.size()));
        if (random.nextInt(5) > 0) {
          write(key, ("value " + n).getBytes());
          continue;
        }
        try {
          collection.remove(key);
        } catch (DocumentNotFoundException gone) {
          continue;
        }
      }
      Map<Integer, Long> changed = seqnos(client);
      changed.entrySet().removeIf(one -> one.getValue() <= before.getOrDefault(one.getKey(), 0L));
      copy.await("everything that was written arrives", () ->
          changed.entrySet().stream().allMatch(one -> copy.seen.getOrDefault(one.getKey(), 0L) >= one.getValue()));
    }
    copy.sameAsBucket(keys);
  }
}
