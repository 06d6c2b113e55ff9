package dev.stave.testcontainers;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;

/**
 * What an image starts, without a container: {@code stave serve} with the variables and ports that the container would
 * have, at an address of this machine that no other program uses.
 */
final class Node implements AutoCloseable {
  /** Of this process. */
  final String host;

  private final Process process;
  private final Path data;

  Node() throws IOException {
    data = Files.createTempDirectory("stave-container-");
    long pid = ProcessHandle.current().pid();
    host = "127." + (1 + pid % 200) + "." + pid / 200 % 250 + ".7";
    String binary = System.getenv("STAVE_BIN");
    List<String> command = List.of(binary == null ? "stave" : binary, "serve", "--data", data.toString());
    ProcessBuilder builder = new ProcessBuilder(command).redirectError(data.resolve("log").toFile());
    builder.environment().put("STAVE_KV", host + ":" + StaveContainer.KV_PORT);
    builder.environment().put("STAVE_HTTP", host + ":" + StaveContainer.HTTP_PORT);
    builder.environment().put("STAVE_USERNAME", "Administrator");
    builder.environment().put("STAVE_PASSWORD", "password");
    process = builder.start();
    BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
    String line;
    while ((line = output.readLine()) != null && !line.startsWith("ready ")) {}
    if (line == null) {
      throw new IOException("the node ended: " + Files.readString(data.resolve("log")));
    }
  }

  @Override
  public void close() throws IOException {
    process.destroy();
    try {
      process.waitFor();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
    try (var files = Files.walk(data)) {
      files.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
    }
  }
}
