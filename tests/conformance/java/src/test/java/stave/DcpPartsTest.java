package stave;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.CollectionCreated;
import com.couchbase.client.dcp.highlevel.CollectionDropped;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.ScopeCreated;
import com.couchbase.client.dcp.highlevel.ScopeDropped;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.kv.GetOptions;
import com.couchbase.client.java.kv.GetResult;
import com.couchbase.client.java.kv.UpsertOptions;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** One collection and one scope, followed by Couchbase's own DCP client. */
class DcpPartsTest {
  private static Cluster cluster;
  private static Bucket bucket;

  @BeforeAll
  static void connect() {
    cluster = StrictCopy.connect();
    bucket = cluster.bucket(StrictCopy.env("STAVE_BUCKET"));
    bucket.waitUntilReady(Duration.ofSeconds(20));
  }

  @AfterAll
  static void disconnect() {
    cluster.disconnect();
  }

  /** What the streams brought, by qualified key, and how many events of each kind. */
  private static final class Copy extends StrictCopy {
    private final String scope;
    private final Map<String, Integer> events = new HashMap<>();

    Copy(String scope) {
      this.scope = scope;
    }

    @Override
    void keep(DocumentChange change) {
      if (!change.getCollection().scope().name().equals(scope)) {
        faults.add(change.getQualifiedKey() + " is not wanted");
      }
      changes++;
      documents.put(change.getCollection().name() + "/" + change.getKey(), change);
    }

    @Override
    String progress() {
      return events.toString();
    }

    private synchronized void event(String kind, int vbucket, long seqno) {
      advance(vbucket, seqno);
      events.merge(kind, 1, Integer::sum);
      notifyAll();
    }

    @Override
    public void onScopeCreated(ScopeCreated event) {
      event("scope begins", event.getVbucket(), event.getSeqno());
    }

    @Override
    public void onScopeDropped(ScopeDropped event) {
      event("scope ends", event.getVbucket(), event.getSeqno());
    }

    @Override
    public void onCollectionCreated(CollectionCreated event) {
      event("collection begins", event.getVbucket(), event.getSeqno());
    }

    @Override
    public void onCollectionDropped(CollectionDropped event) {
      event("collection ends", event.getVbucket(), event.getSeqno());
    }

    @Override
    public synchronized void onStreamEnd(StreamEnd end) {
      events.merge("ends: " + end.getReason().name(), 1, Integer::sum);
      notifyAll();
    }

    /** Waits until everything of a collection has come, and compares it document by document. */
    synchronized int sameAs(Collection collection, int keys) throws InterruptedException {
      Map<String, GetResult> there = new HashMap<>();
      for (int n = 0; n < keys; n++) {
        try {
          GetOptions raw = GetOptions.getOptions().transcoder(RawBinaryTranscoder.INSTANCE);
          there.put(collection.name() + "/k" + n, collection.get("k" + n, raw));
        } catch (DocumentNotFoundException gone) {
          continue;
        }
      }
      await("everything arrives", () -> {
        for (int n = 0; n < keys; n++) {
          String name = collection.name() + "/k" + n;
          DocumentChange copied = documents.get(name);
          GetResult document = there.get(name);
          boolean isThere = copied != null && copied.isMutation();
          if (document == null ? isThere : !isThere || copied.getCas() != document.cas()) {
            return false;
          }
        }
        return true;
      });
      there.forEach((name, document) ->
          assertArrayEquals(document.contentAs(byte[].class), documents.get(name).getContent(), name));
      assertFalse(there.isEmpty());
      return there.size();
    }
  }

  /** Writes documents, and takes some of them out again. */
  private static void fill(Collection collection, int round, int keys) {
    for (int n = 0; n < keys; n++) {
      byte[] value = new byte[(n * 7 + round) % 900 + 1];
      value[0] = (byte) (n + round);
      UpsertOptions raw = UpsertOptions.upsertOptions().transcoder(RawBinaryTranscoder.INSTANCE);
      collection.upsert("k" + n, value, raw);
    }
    for (int n = round; n < keys; n += 5) {
      collection.remove("k" + n);
    }
  }

  private static String newScope() {
    String scope = "java-" + UUID.randomUUID().toString().substring(0, 8);
    bucket.collections().createScope(scope);
    return scope;
  }

  private static int start(Client client, Copy copy) {
    client.listener(copy, FlowControlMode.AUTOMATIC);
    client.connect().block(StrictCopy.DEADLINE);
    client.initializeState(StreamFrom.BEGINNING, StreamTo.INFINITY).block(StrictCopy.DEADLINE);
    client.startStreaming().block(StrictCopy.DEADLINE);
    return client.numPartitions();
  }

  @Test
  void oneCollection() throws Exception {
    String scope = newScope();
    bucket.collections().createCollection(scope, "one");
    bucket.collections().createCollection(scope, "two");
    Collection one = bucket.scope(scope).collection("one");
    Collection two = bucket.scope(scope).collection("two");
    fill(one, 0, 1000);
    fill(two, 0, 200);
    Copy copy = new Copy(scope);
    try (Client client = StrictCopy.client().collectionNames(scope + ".one").build()) {
      int streams = start(client, copy);
      fill(two, 1, 200);
      fill(one, 1, 1000);
      int there = copy.sameAs(one, 1000);
      assertTrue(copy.documents.keySet().stream().allMatch(name -> name.startsWith("one/")));
      System.out.println("dcp: " + copy.changes + " changes of one collection, " + there + " documents, 0 differ");
      copy.expectTheEnd();
      bucket.collections().dropCollection(scope, "two");
      bucket.collections().dropCollection(scope, "one");
      copy.await("every stream tells of the end", () -> copy.events.getOrDefault("collection ends", 0) >= streams);
      assertEquals(streams, copy.events.get("collection begins"));
      assertEquals(streams, copy.events.get("collection ends"));
    }
    bucket.collections().dropScope(scope);
  }

  @Test
  void oneScope() throws Exception {
    String scope = newScope();
    bucket.collections().createCollection(scope, "first");
    Collection first = bucket.scope(scope).collection("first");
    fill(first, 0, 500);
    fill(bucket.defaultCollection(), 0, 20);
    Copy copy = new Copy(scope);
    try (Client client = StrictCopy.client().scopeName(scope).build()) {
      int streams = start(client, copy);
      // One that comes while it is followed belongs to it, too.
      bucket.collections().createCollection(scope, "second");
      Collection second = bucket.scope(scope).collection("second");
      fill(second, 0, 500);
      fill(first, 1, 500);
      int there = copy.sameAs(first, 500) + copy.sameAs(second, 500);
      System.out.println("dcp: " + copy.changes + " changes of a scope, " + there + " documents, 0 differ");
      copy.expectTheEnd();
      bucket.collections().dropCollection(scope, "first");
      bucket.collections().dropScope(scope);
      copy.await("every stream tells of the end", () -> copy.events.getOrDefault("scope ends", 0) >= streams);
      assertEquals(streams, copy.events.get("scope begins"));
      assertEquals(2 * streams, copy.events.get("collection begins"));
      assertEquals(2 * streams, copy.events.get("collection ends"));
      assertEquals(streams, copy.events.get("scope ends"));
    }
  }
}
