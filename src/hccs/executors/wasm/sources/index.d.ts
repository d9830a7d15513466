/** What was expected, what came, and what to do. */
export class HccsError extends Error {
  readonly expected: string;
  readonly got: string;
  readonly hint: string;
}

export interface Ranked { index: number; score: number; text: string }
export interface Prediction { label: string; score: number }
export type Pair = [first: string, second: string];

/** A loaded model. Calls may overlap: each text is answered before the next one is read. */
export class Model {
  private constructor();
  readonly kind: "embeddings" | "rerank" | "classify";
  /** Numbers of a vector; 0 for a model with labels. */
  readonly dims: number;
  readonly labels: string[];
  /** Tokens of a text that are read, special ones among them. */
  readonly maxLength: number;
  /** The fingerprint that the model had in Python. */
  readonly expectedFingerprint: string;

  /** Unit vectors of texts; `out: "int16"` gives integers, of which 32767 stands for 1. */
  encode(text: string, options?: { prompt?: string; out?: "float32" }): Promise<Float32Array>;
  encode(texts: readonly string[], options?: { prompt?: string; out?: "float32" }): Promise<Float32Array[]>;
  encode(text: string, options: { prompt?: string; out: "int16" }): Promise<Int16Array>;
  encode(texts: readonly string[], options: { prompt?: string; out: "int16" }): Promise<Int16Array[]>;

  /** Integer scores of texts or pairs, one for each label. */
  scores(text: string): Promise<Int32Array>;
  scores(texts: readonly (string | Pair)[]): Promise<Int32Array[]>;

  /** The best label of texts or pairs, with its probability. */
  classify(text: string): Promise<Prediction>;
  classify(texts: readonly (string | Pair)[]): Promise<Prediction[]>;

  /** Passages in the order of their relevance to a query. */
  rank(query: string, passages: readonly string[]): Promise<Ranked[]>;

  /** Token ids of a text or a pair, special ones among them. */
  tokenize(text: string, second?: string): Int32Array;

  /** The SHA-256 of the answers to fixed inputs: equal to `expectedFingerprint` where the bits are. */
  fingerprint(): Promise<string>;
}

/** Whether this engine runs the module with SIMD128. */
export function hasSimd(): boolean;

/** Load the model in the folder of an export, by default the one beside this file. */
export function load(url?: string | URL, options?: { simd?: boolean }): Promise<Model>;
