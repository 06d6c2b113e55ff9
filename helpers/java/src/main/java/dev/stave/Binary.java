package dev.stave;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import java.util.stream.Stream;

/** Where the program is. */
final class Binary {
  private static final String HOW_TO_GET_IT =
      "no stave program was found: give binary(PATH), set STAVE_BIN, put stave on the PATH, "
          + "or build it with `cargo build --release` in the Stave repository";

  private Binary() {}

  /** The one given, STAVE_BIN, one on the PATH, one of the repository, or one that is built there. */
  static String find(String given) {
    String named = given != null ? given : System.getenv("STAVE_BIN");
    if (named != null && !named.isEmpty()) {
      if (!isProgram(Path.of(named))) {
        throw new StaveException(named + " is not an executable file: give the path of the stave program");
      }
      return named;
    }
    return onPath("stave").or(Binary::ofRepository).orElseThrow(() -> new StaveException(HOW_TO_GET_IT));
  }

  private static Optional<String> onPath(String name) {
    String path = System.getenv().getOrDefault("PATH", "");
    return Stream.of(path.split(File.pathSeparator))
        .filter(folder -> !folder.isEmpty())
        .map(folder -> Path.of(folder, name))
        .filter(Binary::isProgram)
        .map(Path::toString)
        .findFirst();
  }

  private static Optional<String> ofRepository() {
    for (Path root = Path.of("").toAbsolutePath(); root != null; root = root.getParent()) {
      if (!Files.isRegularFile(root.resolve("crates/stave/Cargo.toml"))) {
        continue;
      }
      Path release = root.resolve("target/release/stave");
      for (Path built : new Path[] {release, root.resolve("target/debug/stave")}) {
        if (isProgram(built)) {
          return Optional.of(built.toString());
        }
      }
      if (onPath("cargo").isPresent()) {
        build(root);
        return Optional.of(release.toString());
      }
    }
    return Optional.empty();
  }

  private static void build(Path root) {
    System.err.println("building stave in " + root + ", which takes minutes");
    try {
      Process cargo =
          new ProcessBuilder("cargo", "build", "--release", "--package", "stave")
              .directory(root.toFile()).inheritIO().start();
      if (cargo.waitFor() != 0) {
        throw new StaveException("cargo build --release failed in " + root + ": see what it printed");
      }
    } catch (IOException error) {
      throw new StaveException("cannot run cargo in " + root + ": " + error.getMessage(), error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new StaveException("interrupted while stave was built in " + root, error);
    }
  }

  private static boolean isProgram(Path path) {
    return Files.isRegularFile(path) && Files.isExecutable(path);
  }
}
