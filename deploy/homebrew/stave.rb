# A formula for a tap of Homebrew on Linux, which builds a release from its source.
# REPOSITORY and the checksum of the tag's archive are filled in when the release is published (docs/releasing.md).
class Stave < Formula
  desc "Key-value store that clients of Couchbase and memcached connect to"
  homepage "REPOSITORY"
  url "REPOSITORY/archive/refs/tags/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"

  depends_on "rust" => :build
  # Nodes are not built for macOS yet (ROADMAP.md).
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/stave")
    generate_completions_from_executable(bin/"stave", "completions", shells: [:bash, :zsh, :fish])
    man1.mkpath
    system bin/"stave", "man", man1
    inreplace "deploy/stave.toml", "/var/lib/stave", var/"stave"
    (etc/"stave").install "deploy/stave.toml"
  end

  def post_install
    require "securerandom"
    password = etc/"stave/password"
    return if password.exist?

    password.write SecureRandom.hex(12)
    password.chmod 0600
  end

  service do
    run [opt_bin/"stave", "serve", "--config", etc/"stave/stave.toml", "--password-file", etc/"stave/password"]
    keep_alive successful_exit: false
    log_path var/"log/stave.log"
    error_log_path var/"log/stave.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/stave --version")
    ENV["STAVE_PASSWORD"] = "secret1"
    system bin/"stave", "serve", "--check", "--data", testpath/"data", "--kv", "127.0.0.1:#{free_port}",
           "--http", "127.0.0.1:#{free_port}"
  end
end
