package dev.stave;

/** For dies_with_parent.py: it is killed while it waits. */
final class Waits {
  public static void main(String[] arguments) throws Exception {
    try (Stave s = Stave.dev().start()) {
      System.out.println(s.pid());
      System.in.read();
    }
  }
}
