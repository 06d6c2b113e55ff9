package dev.stave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class StaveTest {
  @Test
  void ordersChangeTheClusterAndAResetUndoesThat() {
    try (Stave s = Stave.dev().nodes(2).start()) {
      s.delay(100, "get");
      s.fail("set", 3);
      assertTrue(s.status().contains("\"left\":3"), s.status());
      s.stop(1);
      s.reset();
      assertFalse(s.status().contains("\"left\""), s.status());
      assertFalse(s.status().contains("\"may_serve\":false"), s.status());
      s.freeze(2);
      s.thaw(2);
      s.restart(2);
      s.heal();
      s.advanceClock(60);
      assertRefused("404: {\"message\":\"there is no node 9", () -> s.kill(9));
      assertRefused("is not frozen", () -> s.thaw(1));
    }
  }

  @Test
  void theSeedFileIsLoadedOrRefused(@TempDir Path folder) throws IOException {
    Path seed = folder.resolve("seed.json");
    Files.writeString(seed, "{\"buckets\": {\"travel\": {\"documents\": {\"a\": 1}}}}");
    try (Stave s = Stave.dev().seedFile(seed).start()) {
      s.reset();
    }
    Files.writeString(seed, "{}");
    assertRefused("missing field `buckets` at line 1", () -> Stave.dev().seedFile(seed).start());
  }

  @Test
  void whatDoesNotStartSaysWhy() {
    assertRefused("--replicas 5: give a number", () -> Stave.dev().replicas(5).start());
    assertRefused("/nowhere/stave is not an executable file", () -> Stave.dev().binary("/nowhere/stave").start());
  }

  @Test
  void closingEndsTheProcess() {
    Stave s = Stave.dev().start();
    s.close();
    s.close();
    assertFalse(ProcessHandle.of(s.pid()).isPresent());
  }

  /** What the README shows is what runs. */
  @Test
  void theReadmeShowsTheTestOfOrders() throws IOException {
    String readme = Files.readString(Path.of("README.md"));
    int begin = readme.indexOf("```java\n") + "```java\n".length();
    String shown = readme.substring(begin, readme.indexOf("```", begin));
    assertEquals(Files.readString(Path.of("src/test/java/orders/OrdersTest.java")), shown);
  }

  private static void assertRefused(String why, Runnable order) {
    StaveException refused = assertThrows(StaveException.class, order::run);
    assertTrue(refused.getMessage().contains(why), refused.getMessage());
  }
}
