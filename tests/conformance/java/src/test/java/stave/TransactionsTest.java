package stave;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.codec.RawBinaryTranscoder;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.GetOptions;
import com.couchbase.client.java.kv.LookupInSpec;
import com.couchbase.client.java.transactions.TransactionGetResult;
import com.couchbase.client.java.transactions.config.TransactionInsertOptions;
import com.couchbase.client.java.transactions.config.TransactionsConfig;
import com.couchbase.client.java.transactions.error.TransactionFailedException;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Distributed transactions: what is committed is there, what is rolled back leaves no trace. */
class TransactionsTest {
  private static Cluster cluster;
  private static Collection collection;

  @BeforeAll
  static void connect() {
    cluster = StrictCopy.connect(StrictCopy.env("STAVE_USER"), StrictCopy.env("STAVE_PASSWORD"), environment ->
        environment.transactionsConfig(
            TransactionsConfig.durabilityLevel(DurabilityLevel.NONE).timeout(Duration.ofSeconds(30))));
    cluster.bucket(StrictCopy.env("STAVE_BUCKET")).waitUntilReady(Duration.ofSeconds(20));
    collection = cluster.bucket(StrictCopy.env("STAVE_BUCKET")).defaultCollection();
  }

  @AfterAll
  static void disconnect() {
    cluster.disconnect();
  }

  private static String key() {
    return "tx:" + UUID.randomUUID();
  }

  private static JsonObject balance(int value) {
    return JsonObject.create().put("balance", value);
  }

  @Test
  void severalDocumentsChangeAtOnce() {
    String from = key();
    String to = key();
    String made = key();
    String gone = key();
    collection.upsert(from, balance(100));
    collection.upsert(to, balance(0));
    collection.upsert(gone, JsonObject.create());
    cluster.transactions().run(attempt -> {
      TransactionGetResult source = attempt.get(collection, from);
      TransactionGetResult target = attempt.get(collection, to);
      attempt.replace(source, balance(source.contentAs(JsonObject.class).getInt("balance") - 30));
      attempt.replace(target, balance(target.contentAs(JsonObject.class).getInt("balance") + 30));
      attempt.insert(collection, made, JsonObject.create().put("by", "transaction"));
      attempt.remove(attempt.get(collection, gone));
      assertEquals(100, collection.get(from).contentAsObject().getInt("balance"));
      assertFalse(collection.exists(made).exists());
    });
    assertEquals(70, collection.get(from).contentAsObject().getInt("balance"));
    assertEquals(30, collection.get(to).contentAsObject().getInt("balance"));
    assertEquals("transaction", collection.get(made).contentAsObject().getString("by"));
    assertThrows(DocumentNotFoundException.class, () -> collection.get(gone));
  }

  @Test
  void bytesAreStagedAndCommitted() {
    String made = key();
    byte[] value = {0, 1, 2, (byte) 0xff, 0};
    cluster.transactions().run(attempt -> attempt.insert(
        collection, made, value, TransactionInsertOptions.transactionInsertOptions().transcoder(RawBinaryTranscoder.INSTANCE)));
    GetOptions raw = GetOptions.getOptions().transcoder(RawBinaryTranscoder.INSTANCE);
    assertArrayEquals(value, collection.get(made, raw).contentAsBytes());
  }

  @Test
  void whatTheApplicationGivesUpIsRolledBack() {
    String there = key();
    String made = key();
    collection.upsert(there, balance(1));
    assertThrows(TransactionFailedException.class, () -> cluster.transactions().run(attempt -> {
      attempt.replace(attempt.get(collection, there), balance(2));
      attempt.insert(collection, made, balance(3));
      throw new IllegalStateException("the application changed its mind");
    }));
    assertEquals(1, collection.get(there).contentAsObject().getInt("balance"));
    assertFalse(collection.exists(made).exists());
    assertFalse(collection.lookupIn(there, List.of(LookupInSpec.exists("txn").xattr())).exists(0));
  }

  @Test
  void transactionsThatMeetLoseNothing() {
    String counter = key();
    collection.upsert(counter, balance(0));
    IntStream.range(0, 8).parallel().forEach(one -> cluster.transactions().run(attempt -> {
      TransactionGetResult document = attempt.get(collection, counter);
      attempt.replace(document, balance(document.contentAs(JsonObject.class).getInt("balance") + 1));
    }));
    assertEquals(8, collection.get(counter).contentAsObject().getInt("balance"));
  }
}
