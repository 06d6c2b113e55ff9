package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.json.JsonObject;
import dev.stave.Stave;
import dev.stave.StaveExtension;
import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class OrdersTest {
  @RegisterExtension
  static StaveExtension stave = new StaveExtension(Stave.dev().nodes(3).replicas(1));

  @Test
  void temporaryFailuresAreTriedAgain() {
    Stave s = stave.cluster();
    try (Cluster cluster = Cluster.connect(s.connectionString(), s.username(), s.password())) {
      var bucket = cluster.bucket("default");
      bucket.waitUntilReady(Duration.ofSeconds(30)); // or else the first operation's 2.5 s include it
      var orders = bucket.defaultCollection();
      orders.upsert("order-1", JsonObject.create().put("total", 3));
      s.fail("get", 2);
      assertEquals(3, orders.get("order-1").contentAsObject().getInt("total"));
    }
  }
}
