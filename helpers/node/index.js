// Development clusters of Stave for tests: `const s = await stave.dev({ nodes: 3 })`.
'use strict'

const { spawn, spawnSync } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')

const LOG_BYTES = 2000

/** The cluster did not start, or refused an order. */
class StaveError extends Error {}

function isProgram (file) {
  try {
    fs.accessSync(file, fs.constants.X_OK)
    return fs.statSync(file).isFile()
  } catch {
    return false
  }
}

/** The Stave repositories around the working directory and this file. */
function * repositories () {
  for (const start of [process.cwd(), __dirname]) {
    for (let folder = start; ; folder = path.dirname(folder)) {
      if (fs.existsSync(path.join(folder, 'crates', 'stave', 'Cargo.toml'))) yield folder
      if (folder === path.dirname(folder)) break
    }
  }
}

/** The program: the one given, STAVE_BIN, one on the PATH, one of the repository, or one that is built there. */
function findBinary (binary) {
  const named = binary || process.env.STAVE_BIN
  if (named) {
    if (isProgram(named)) return named
    throw new StaveError(`${named} is not an executable file: give the path of the stave program`)
  }
  const folders = (process.env.PATH || '').split(path.delimiter).filter(Boolean)
  const onPath = folders.map(folder => path.join(folder, 'stave')).find(isProgram)
  if (onPath) return onPath
  for (const root of repositories()) {
    const built = ['release', 'debug'].map(profile => path.join(root, 'target', profile, 'stave'))
    const found = built.find(isProgram)
    if (found) return found
    if (folders.some(folder => isProgram(path.join(folder, 'cargo')))) {
      console.error(`building stave in ${root}, which takes minutes`)
      const build = spawnSync('cargo', ['build', '--release', '--package', 'stave'], { cwd: root, stdio: 'inherit' })
      if (build.status === 0) return built[0]
      throw new StaveError(`cargo build --release failed in ${root}: see what it printed`)
    }
  }
  throw new StaveError('no stave program was found: give binary, set STAVE_BIN, put stave on the PATH, ' +
    'or build it with `cargo build --release` in the Stave repository')
}

/** A running cluster. It ends with `close` and with this process. */
class Dev {
  #child
  #ended

  /** Starts a cluster, and waits until all of its nodes serve. */
  static async start (options = {}) {
    const {
      nodes = 1, replicas = 0, buckets = ['default'], username = 'Administrator', password = 'password',
      binary, arguments: more = [], seedFile
    } = options
    const child = spawn(findBinary(binary), [
      'dev', '--json', '--with-parent', String(process.pid), '--kv', '127.0.0.1:0', '--http', '127.0.0.1:0',
      '--nodes', String(nodes), '--replicas', String(replicas), '--username', username,
      ...buckets.flatMap(bucket => ['--bucket', bucket]), ...(seedFile ? ['--seed-file', seedFile] : []), ...more
    ], { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, STAVE_PASSWORD: password } })
    let log = ''
    child.stderr.on('data', bytes => { log = (log + bytes).slice(-LOG_BYTES) })
    const ended = new Promise((resolve, reject) => {
      child.once('error', reject)
      child.once('close', (code, signal) => resolve(code ?? signal))
    })
    const line = await Promise.race([
      new Promise(resolve => readline.createInterface({ input: child.stdout }).once('line', resolve)),
      ended.then(status => {
        throw new StaveError(
          `stave dev ended with status ${status} before it was ready; its log ends with:\n${log}`)
      })
    ])
    // An idle cluster does not keep the program of the tests from ending.
    child.unref()
    child.stdout.unref()
    child.stderr.unref()
    return new Dev(child, ended, JSON.parse(line), password)
  }

  constructor (child, ended, ready, password) {
    this.#child = child
    this.#ended = ended
    this.pid = child.pid
    this.username = ready.username
    this.password = password
    this.nodes = ready.nodes
    this.ca = ready.ca
    this.connectionString = 'couchbase://' + ready.nodes.map(node => node.kv).join(',')
    this.http = 'http://' + ready.nodes[0].http
    this.control = 'http://' + ready.control
  }

  /** Ends the cluster and waits for that; does nothing the second time. */
  async close () {
    this.#child.ref()
    this.#child.kill('SIGTERM')
    await this.#ended
  }

  /** Any order of the control endpoint: `order('nodes/2/cut', { from: 'store' })`. Gives what the cluster is then. */
  order (path, options = {}) {
    const given = Object.entries(options).filter(([, value]) => value !== undefined)
    const query = String(new URLSearchParams(given))
    return this.#ask('POST', path + (query ? '?' + query : ''))
  }

  /** What each node is and where it listens. */
  status () {
    return this.#ask('GET', '')
  }

  async #ask (method, path) {
    const url = `${this.control}/v1/dev/${path}`
    const answer = await fetch(url, { method })
    const told = await answer.json()
    if (!answer.ok) {
      throw new StaveError(`${method} ${url} was refused with ${answer.status}: ${told.message}`)
    }
    return told
  }

  /** All nodes serve, without injected failures, and all buckets are empty, or have what the seed file says. */
  reset () { return this.order('reset') }

  /** Requests wait: those of one command or of all, on one node or on all, as often as `times` says or until `heal`. */
  delay (ms, { opcode, node, times } = {}) { return this.order(at(node, 'delay'), { ms, opcode, times }) }

  /** Requests are refused: temporary-failure, busy, out-of-memory or internal-error. */
  fail ({ opcode, node, times, status } = {}) { return this.order(at(node, 'fail'), { opcode, times, status }) }

  /** Takes back delays and failures. */
  heal ({ node } = {}) { return this.order(at(node, 'heal')) }

  /** Moves the wall clock, so that documents expire. */
  advanceClock (seconds, { node } = {}) { return this.order('clock', { advance_s: seconds, node }) }
}

function at (node, order) {
  return node === undefined ? order : `nodes/${node}/${order}`
}

for (const name of ['kill', 'stop', 'start', 'restart', 'freeze', 'thaw', 'failover', 'recover']) {
  Dev.prototype[name] = function (node, options) { return this.order(`nodes/${node}/${name}`, options) }
}

module.exports = { Dev, StaveError, dev: options => Dev.start(options), findBinary }
