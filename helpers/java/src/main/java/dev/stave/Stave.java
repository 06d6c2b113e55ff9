package dev.stave;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A running development cluster. It ends with {@link #close} and with this process. */
public final class Stave implements AutoCloseable {
  private static final int LOG_CHARACTERS = 2000;

  private final Process process;
  private final Path log;
  private final String username;
  private final String password;
  private final List<String> kv;
  private final String http;
  private final String control;
  private final HttpClient client = HttpClient.newHttpClient();

  /** What a cluster is started with. */
  public static final class Options {
    private int nodes = 1;
    private int replicas = 0;
    private String username = "Administrator";
    private String password = "password";
    private String binary;
    private final List<String> more = new ArrayList<>();

    private Options() {}

    public Options nodes(int nodes) {
      this.nodes = nodes;
      return this;
    }

    public Options replicas(int replicas) {
      this.replicas = replicas;
      return this;
    }

    /** A bucket, {@code NAME[:QUOTA[:TYPE]]}; may be repeated. Without any there is "default". */
    public Options bucket(String bucket) {
      return argument("--bucket").argument(bucket);
    }

    public Options login(String username, String password) {
      this.username = username;
      this.password = password;
      return this;
    }

    /** The stave program. */
    public Options binary(String binary) {
      this.binary = binary;
      return this;
    }

    /** Documents that the cluster begins with, after each reset too; docs/developing.md has the format. */
    public Options seedFile(Path file) {
      return argument("--seed-file").argument(file.toString());
    }

    /** One more argument of {@code stave dev}. */
    public Options argument(String argument) {
      more.add(argument);
      return this;
    }

    /** Starts the cluster, and waits until all of its nodes serve. */
    public Stave start() {
      try {
        return new Stave(this);
      } catch (IOException error) {
        throw new StaveException("cannot start stave dev: " + error.getMessage(), error);
      }
    }
  }

  /** One node with the bucket "default", unless more is said. */
  public static Options dev() {
    return new Options();
  }

  private Stave(Options options) throws IOException {
    username = options.username;
    password = options.password;
    List<String> command = new ArrayList<>(List.of(Binary.find(options.binary), "dev", "--json"));
    command.addAll(List.of("--with-parent", Long.toString(ProcessHandle.current().pid())));
    command.addAll(List.of("--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--username", username));
    command.addAll(List.of("--nodes", "" + options.nodes, "--replicas", "" + options.replicas));
    command.addAll(options.more);
    log = Files.createTempFile("stave-dev-", ".log");
    ProcessBuilder builder = new ProcessBuilder(command).redirectError(log.toFile());
    builder.environment().put("STAVE_PASSWORD", password);
    process = builder.start();
    BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
    String line = output.readLine();
    if (line == null) {
      int status = waitForEnd();
      String said = Files.readString(log);
      Files.delete(log);
      throw new StaveException(
          "stave dev ended with status " + status + " before it was ready; its log ends with:\n"
              + said.substring(Math.max(0, said.length() - LOG_CHARACTERS)));
    }
    kv = all(line, "kv");
    http = "http://" + all(line, "http").get(0);
    control = "http://" + all(line, "control").get(0);
  }

  /** The values of a field of the ready line whose values are addresses. */
  private static List<String> all(String json, String field) {
    Matcher matcher = Pattern.compile("\"" + field + "\":\"([0-9a-f.:\\[\\]]+)\"").matcher(json);
    List<String> found = new ArrayList<>();
    while (matcher.find()) {
      found.add(matcher.group(1));
    }
    return found;
  }

  /** For SDKs, with all nodes. */
  public String connectionString() {
    return "couchbase://" + String.join(",", kv);
  }

  public String username() {
    return username;
  }

  public String password() {
    return password;
  }

  /** The HTTP address of the first node. */
  public String http() {
    return http;
  }

  /** The address of the control endpoint. */
  public String control() {
    return control;
  }

  public long pid() {
    return process.pid();
  }

  /** Ends the cluster and waits for that; does nothing the second time. */
  @Override
  public void close() {
    process.destroy();
    waitForEnd();
    try {
      process.getInputStream().close();
      Files.deleteIfExists(log);
    } catch (IOException error) {
      throw new StaveException("cannot remove " + log + ": " + error.getMessage(), error);
    }
  }

  private int waitForEnd() {
    try {
      return process.waitFor();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new StaveException("interrupted before stave dev had ended", error);
    }
  }

  /** Any order of the control endpoint, {@code nodes/2/cut?from=store}; returns what the cluster is then, as JSON. */
  public String order(String path) {
    return ask("POST", path);
  }

  /** What each node is and where it listens, as JSON. */
  public String status() {
    return ask("GET", "");
  }

  private String ask(String method, String path) {
    URI uri = URI.create(control + "/v1/dev/" + path);
    HttpRequest request =
        HttpRequest.newBuilder(uri).method(method, HttpRequest.BodyPublishers.noBody()).build();
    try {
      HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
      if (answer.statusCode() != 200) {
        throw new StaveException(
            method + " " + uri + " was refused with " + answer.statusCode() + ": " + answer.body());
      }
      return answer.body();
    } catch (IOException error) {
      throw new StaveException(method + " " + uri + " failed: " + error.getMessage(), error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new StaveException(method + " " + uri + " was interrupted", error);
    }
  }

  /** All nodes serve, without injected failures, and all buckets are empty, or have what the seed file says. */
  public void reset() {
    order("reset");
  }

  /** Requests of a command wait on all nodes, until {@link #heal}. */
  public void delay(int ms, String opcode) {
    order("delay?ms=" + ms + "&opcode=" + encoded(opcode));
  }

  /** The next requests of a command are refused with a temporary failure by each node. */
  public void fail(String opcode, int times) {
    order("fail?opcode=" + encoded(opcode) + "&times=" + times);
  }

  /** Takes back delays and failures. */
  public void heal() {
    order("heal");
  }

  /** Moves the wall clock of all nodes, so that documents expire. */
  public void advanceClock(long seconds) {
    order("clock?advance_s=" + seconds);
  }

  public void kill(int node) {
    order("nodes/" + node + "/kill");
  }

  public void stop(int node) {
    order("nodes/" + node + "/stop");
  }

  public void start(int node) {
    order("nodes/" + node + "/start");
  }

  public void restart(int node) {
    order("nodes/" + node + "/restart");
  }

  public void freeze(int node) {
    order("nodes/" + node + "/freeze");
  }

  public void thaw(int node) {
    order("nodes/" + node + "/thaw");
  }

  public void failover(int node) {
    order("nodes/" + node + "/failover");
  }

  public void recover(int node) {
    order("nodes/" + node + "/recover");
  }

  private static String encoded(String text) {
    return URLEncoder.encode(text, StandardCharsets.UTF_8);
  }
}
