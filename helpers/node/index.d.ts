export interface DevOptions {
  nodes?: number
  replicas?: number
  /** `NAME[:QUOTA[:TYPE]]` of each. */
  buckets?: string[]
  username?: string
  password?: string
  /** The stave program. */
  binary?: string
  /** Documents that the cluster begins with, after each reset too; see docs/developing.md. */
  seedFile?: string
  /** More arguments of `stave dev`. */
  arguments?: string[]
}

export interface NodeAddresses {
  node: number
  kv: string
  http: string
  kvs: string | null
  https: string | null
}

/** What the control endpoint tells; see docs/developing.md. */
export type Status = Record<string, unknown>
type Options = Record<string, string | number | boolean | undefined>

export class StaveError extends Error {}

export class Dev {
  static start (options?: DevOptions): Promise<Dev>
  readonly pid: number
  readonly username: string
  readonly password: string
  readonly nodes: NodeAddresses[]
  readonly ca: string | null
  readonly connectionString: string
  readonly http: string
  readonly control: string
  close (): Promise<void>
  order (path: string, options?: Options): Promise<Status>
  status (): Promise<Status>
  reset (): Promise<Status>
  delay (ms: number, options?: { opcode?: string, node?: number, times?: number }): Promise<Status>
  fail (options?: { opcode?: string, node?: number, times?: number, status?: string }): Promise<Status>
  heal (options?: { node?: number }): Promise<Status>
  advanceClock (seconds: number, options?: { node?: number }): Promise<Status>
  kill (node: number): Promise<Status>
  stop (node: number): Promise<Status>
  start (node: number, options?: Options): Promise<Status>
  restart (node: number, options?: Options): Promise<Status>
  freeze (node: number): Promise<Status>
  thaw (node: number, options?: Options): Promise<Status>
  failover (node: number, options?: Options): Promise<Status>
  recover (node: number, options?: Options): Promise<Status>
}

export function dev (options?: DevOptions): Promise<Dev>
export function findBinary (binary?: string): string
