// A transformer in integers, from text: the same bits in browsers, workers, node, Deno and Python. No dependencies.

/** What was expected, what came, and what to do. */
export class HccsError extends Error {
  constructor(expected, got, hint) {
    super(`expected ${expected}; got ${got}. ${hint}`);
    Object.assign(this, { name: "HccsError", expected, got, hint });
  }
}

const OK = 0, BAD_LENGTH = 1, BAD_TEXT = 4, LONG_WORD = 5, CUT = 6; // hccs_model_status
const CACHE = "hccs";
const PAUSE = 50; // milliseconds after which a long list of texts lets others run
const ONE = 32767;

// A module of one function with an instruction of SIMD128.
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0,
  253, 15, 253, 98, 11);

async function read(url) {
  if (url.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return readFile(url).catch((error) => {
      throw new HccsError(`a file at ${url}`, error.message, "Export the model again, or correct the path.");
    });
  }
  let response;
  try {
    response = await fetch(url);
  } catch (error) {
    throw new HccsError(`an answer from ${url}`, error.message, "Check the address and the connection.");
  }
  if (!response.ok) throw new HccsError(`a file at ${url}`, `status ${response.status}`, "Check the address.");
  try {
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    throw new HccsError(`all of ${url}`, `a download that was cut off (${error.message})`, "Load it again.");
  }
}

// Weights are fetched once: where the browser has a cache, it keeps them by their checksum.
async function readWeights(url, { bytes, checksum }) {
  const cache = /^https?:$/.test(url.protocol) ? await globalThis.caches?.open(CACHE).catch(() => null) : null;
  const key = new URL(url);
  key.searchParams.set("checksum", checksum);
  const kept = await cache?.match(key);
  let content = kept && new Uint8Array(await kept.arrayBuffer());
  if (content?.length !== bytes) {
    content = await read(url);
    if (content.length !== bytes) {
      throw new HccsError(`${bytes} bytes at ${url}`, `${content.length}: a download that was cut off, or the weights ` +
        "of another model", "Load it again, with all files of one export.");
    }
    await cache?.put(key, new Response(content)).catch(() => {}); // a full disk is no reason to stop
  }
  return content;
}

/** Whether this engine runs the module with SIMD128. */
export const hasSimd = () => WebAssembly.validate(SIMD);

/**
 * Load the model of an export: by default the one that lies beside this file.
 * @param {string | URL} [url] the folder of the export
 * @param {{ simd?: boolean }} [options] `simd: false` takes the module without SIMD128
 */
export async function load(url = new URL("./", import.meta.url), { simd = hasSimd() } = {}) {
  const base = new URL(String(url).replace(/\/?$/, "/"), globalThis.location?.href ?? import.meta.url);
  let facts;
  try {
    facts = JSON.parse(new TextDecoder().decode(await read(new URL("model.json", base))));
  } catch (error) {
    if (error instanceof HccsError) throw error;
    throw new HccsError(`JSON at ${new URL("model.json", base)}`, error.message, "Load it again, or correct the address.");
  }
  if (facts?.format !== "hccs.wasm" || facts.version !== 1) {
    throw new HccsError("a model.json of hccs.wasm, version 1", `${facts?.format} ${facts?.version}`, "Export it again.");
  }
  const [code, weights] = await Promise.all([
    read(new URL(simd ? "model.wasm" : "model-plain.wasm", base)),
    readWeights(new URL("weights.bin", base), facts.weights),
  ]);
  let instance;
  try {
    ({ instance } = await WebAssembly.instantiate(code, {}));
  } catch (error) {
    throw new HccsError("a whole module", error.message, "Load it again, with all files of one export.");
  }
  const { memory, weights: place, check } = instance.exports;
  const at = place();
  if (at + weights.length > memory.buffer.byteLength) {
    throw new HccsError("the module of these weights", "that of a smaller model", "Use the files of one export.");
  }
  new Uint8Array(memory.buffer, at, weights.length).set(weights);
  const verdict = check(...[8, 0].map((start) => parseInt(facts.weights.checksum.slice(start, start + 8), 16)));
  if (verdict === 0) {
    await globalThis.caches?.delete(CACHE).catch(() => {}); // the next attempt fetches them again
    throw new HccsError("the weights of this module", "those of another model, or damaged ones",
      "Load them again, with all files of one export.");
  }
  if (verdict === 1) {
    throw new HccsError("the model.json of this module", "that of another model", "Use all files of one export.");
  }
  return new Model(facts, instance.exports);
}

/** A loaded model. Calls may overlap: each text is answered before the next one is read. */
export class Model {
  #facts;
  #wasm;
  #warned = false;

  constructor(facts, exports) {
    this.#facts = facts;
    this.#wasm = exports;
  }

  get kind() { return this.#facts.kind; }
  get dims() { return this.#facts.dims; }
  get labels() { return [...this.#facts.labels]; }
  get maxLength() { return this.#facts.maxLength; }
  /** The fingerprint that the model had in Python; `fingerprint()` computes it here. */
  get expectedFingerprint() { return this.#facts.fingerprint; }

  /**
   * Unit vectors of texts: a Float32Array for each, or an Int16Array (32767 stands for 1) with `out: "int16"`.
   * One string gives one vector. `prompt` names a prefix of the model; "" is none, by default the model's own.
   */
  async encode(texts, { prompt, out = "float32" } = {}) {
    this.#require("embeddings", "encode");
    if (out !== "float32" && out !== "int16") throw new HccsError('out "float32" or "int16"', out, "Leave it out.");
    const prefix = this.#prefix(prompt);
    const listed = list(texts);
    const found = await this.#each(listed, (text) => [prefix + text], () => {
      const units = new Int16Array(this.#wasm.memory.buffer, this.#wasm.answer(), this.dims);
      return out === "int16" ? units.slice() : Float32Array.from(units, (unit) => unit / ONE);
    });
    return typeof texts === "string" ? found[0] : found;
  }

  /** Integer scores of texts, or of pairs [first, second]: an Int32Array with one score for each label. */
  async scores(texts) {
    this.#require("classify", "scores");
    const found = await this.#each(list(texts, true), (text) => [text].flat(), () =>
      new Int32Array(this.#wasm.memory.buffer, this.#wasm.answer(), this.#facts.labels.length).slice());
    return typeof texts === "string" ? found[0] : found;
  }

  /** The best label of every text or pair, with its probability; of one string, one. */
  async classify(texts) {
    const one = typeof texts === "string";
    const found = (await this.scores(one ? [texts] : texts)).map((scores) => {
      const logits = Array.from(scores, (score) => score * this.#facts.scoreScale);
      const best = logits.indexOf(Math.max(...logits));
      const total = logits.reduce((sum, logit) => sum + Math.exp(logit - logits[best]), 0);
      return { label: this.#facts.labels[best], score: logits.length > 1 ? 1 / total : logits[0] };
    });
    return one ? found[0] : found;
  }

  /** Passages in the order of their relevance to a query, by a model of pairs with one or two outputs. */
  async rank(query, passages) {
    requireText(query);
    const texts = list(passages);
    const scores = await this.scores(texts.map((passage) => [query, passage]));
    const relevance = scores.map((row) => row[row.length - 1] - (row.length === 2 ? row[0] : 0));
    const order = texts.map((_, index) => index).sort((a, b) => relevance[b] - relevance[a] || a - b);
    return order.map((index) => ({ index, score: relevance[index] * this.#facts.scoreScale, text: texts[index] }));
  }

  /** Token ids of a text, or of a pair, special ones among them. */
  tokenize(text, second) {
    const pair = second === undefined ? [text] : [text, second];
    pair.forEach(requireText);
    const length = this.#wasm.read(...this.#write(pair));
    if (length < 0) this.#refuse(LONG_WORD, text);
    return new Int32Array(this.#wasm.memory.buffer, this.#wasm.tokens(), length).slice();
  }

  /** The SHA-256 of the answers to fixed inputs: equal to Python's where the model computes the same bits. */
  async fingerprint() {
    const { sequences, lengths, longest, vocabulary, types } = this.#facts.fingerprintInputs;
    if (!globalThis.crypto?.subtle) {
      throw new HccsError("SHA-256", "a page without it", "Serve the page from https or from localhost.");
    }
    const parts = [];
    let state = 1;
    for (let number = 0; number < sequences; ++number) {
      const n = lengths[number % lengths.length];
      const tokens = Int32Array.from({ length: n }, () => {
        state = (Math.imul(1103515245, state) + 12345) & 0x7fffffff;
        return Math.floor((state * vocabulary) / 2 ** 31);
      });
      const kinds = Uint8Array.from({ length: n }, (_, i) => Number(types > 1 && i >= (n + 1) >> 1));
      const { memory } = this.#wasm;
      new Int32Array(memory.buffer, this.#wasm.tokens(), n).set(tokens);
      new Uint8Array(memory.buffer, this.#wasm.types(), n).set(kinds);
      const status = this.#wasm.run_tokens(n);
      if (status !== OK) this.#refuse(status, "a fixed input");
      const answer = this.dims
        ? new Int16Array(memory.buffer, this.#wasm.answer(), this.dims)
        : new Int32Array(memory.buffer, this.#wasm.answer(), this.#facts.labels.length);
      parts.push(1, answer.length, ...answer);
      if (number % 4 === 3) await pause();
    }
    const bytes = new DataView(new ArrayBuffer(4 * parts.length)); // little endian wherever it runs
    parts.forEach((part, i) => bytes.setInt32(4 * i, part, true));
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes.buffer));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  #require(kind, method) {
    if ((this.kind === "embeddings") !== (kind === "embeddings")) {
      throw new HccsError(`a model for ${method}`, `one for ${this.kind}`,
        `Use ${this.kind === "embeddings" ? "encode" : "classify, scores or rank"}.`);
    }
  }

  #prefix(prompt) {
    const { prompts, defaultPrompt } = this.#facts;
    const name = prompt ?? defaultPrompt ?? "";
    if (name === "") return "";
    if (!Object.hasOwn(prompts, name)) {
      throw new HccsError(`the name of a prompt (${Object.keys(prompts).join(", ") || "none"})`, String(name),
        "Put a prefix of your own in front of the texts.");
    }
    return prompts[name];
  }

  // The answers to all texts. What one run needs happens without a pause: another call cannot come between.
  async #each(texts, parts, take) {
    const found = [];
    let since = performance.now(), cut = 0;
    for (const text of texts) {
      if (performance.now() - since > PAUSE) {
        await pause();
        since = performance.now();
      }
      const status = this.#wasm.run_text(...this.#write(parts(text)));
      cut += status === CUT;
      if (status !== OK && status !== CUT) this.#refuse(status, String(text));
      found.push(take());
    }
    if (cut && !this.#warned) {
      this.#warned = true;
      console.warn(`hccs: ${cut} of ${texts.length} texts have more than ${this.maxLength} tokens: the rest was not read`);
    }
    return found;
  }

  // Texts as UTF-8 into the module's memory; the bytes of each, -1 for none.
  #write([first, second]) {
    const encoder = new TextEncoder();
    const bytes = [first, second ?? ""].map((text) => encoder.encode(text));
    const room = this.#wasm.room(bytes[0].length + bytes[1].length);
    if (!room) throw new HccsError("memory for a text", `none for ${bytes[0].length} bytes`, "Cut the text.");
    const memory = new Uint8Array(this.#wasm.memory.buffer);
    memory.set(bytes[0], room);
    memory.set(bytes[1], room + bytes[0].length);
    return [bytes[0].length, second === undefined ? -1 : bytes[1].length];
  }

  #refuse(status, text) {
    const shown = JSON.stringify(text.slice(0, 40));
    if (status === BAD_LENGTH) throw new HccsError("at least one token in every text", `none in ${shown}`, "Leave it out.");
    if (status === BAD_TEXT) throw new HccsError("text", `no UTF-8 in ${shown}`, "Repair it.");
    if (status === LONG_WORD) {
      throw new HccsError("words of at most 32,768 bytes", `a longer one in ${shown}`, "Put spaces into it.");
    }
    throw new HccsError("a text that the model takes", `status ${status} for ${shown}`, "Please report it.");
  }
}

const pause = () => new Promise((resolve) => setTimeout(resolve));

function requireText(text) {
  if (typeof text !== "string") {
    throw new HccsError("a text", text === null ? "null" : typeof text, "Pass strings.");
  }
  if (/\p{Surrogate}/u.test(text)) {
    throw new HccsError("text that UTF-8 can write", "half a surrogate pair", "Repair it: String.prototype.toWellFormed.");
  }
}

function list(texts, pairs = false) {
  const listed = typeof texts === "string" ? [texts] : texts;
  if (!Array.isArray(listed)) throw new HccsError("a text or an array of texts", typeof texts, "Pass strings.");
  for (const text of listed) {
    if (pairs && Array.isArray(text) && text.length === 2) text.forEach(requireText);
    else requireText(text);
  }
  return listed;
}
