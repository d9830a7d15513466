// Times one sentence in whichever engine this runs: ours, onnxruntime-web with each of its files, and transformers.js.
// The same in node and in a browser: `read` and `importer` say where bytes and modules come from.

export async function measure({ read, importer, ours, ort, wasm, files, transformers, sentences, turns }) {
  const calls = {}; // by contender, then by length
  const { load } = await importer(ours);
  const model = await load();
  calls.hccs = Object.fromEntries(sentences.map(({ ids, text }) => {
    if (model.tokenize(text).length !== ids.length) throw new Error(`${text} has not ${ids.length} tokens`);
    return [ids.length, async () => [...(await model.encode(text))]];
  }));
  if (ort) await addPeers(calls, { read, importer, ort, wasm, files, sentences });
  if (transformers && globalThis.document) await addTransformers(calls, { importer, ...transformers, sentences });
  const found = {};
  for (const { ids } of sentences) {
    const times = Object.fromEntries(Object.keys(calls).map((name) => [name, []]));
    const vectors = {};
    for (let turn = -3; turn < turns; ++turn) { // all take turns; the first ones are for the compilers
      for (const name of Object.keys(calls)) {
        const call = calls[name][ids.length];
        for (let i = 0; i < (turn < 0 ? 8 : 1); ++i) vectors[name] = await call();
        await new Promise((resolve) => setTimeout(resolve, turn < 0 ? 400 : 1));
        const start = performance.now();
        for (let i = 0; i < 3; ++i) await call();
        if (turn >= 0) times[name].push((performance.now() - start) / 3);
      }
    }
    found[ids.length] = Object.fromEntries(Object.keys(calls).map((name) => {
      const sorted = times[name].sort((a, b) => a - b);
      const cosine = vectors[name].reduce((sum, value, i) => sum + value * vectors.hccs[i], 0);
      return [name, { milliseconds: sorted[sorted.length >> 1], best: sorted[0], cosine }];
    }));
  }
  return found;
}

async function addPeers(calls, { read, importer, ort, wasm, files, sentences }) {
  const { InferenceSession, Tensor, env } = await importer(ort);
  env.wasm.numThreads = 1;
  env.wasm.wasmBinary = (await read(wasm)).buffer;
  for (const [name, file] of Object.entries(files)) {
    const session = await InferenceSession.create(await read(file), { executionProviders: ["wasm"] });
    calls[name] = Object.fromEntries(sentences.map(({ ids }) => {
      const whole = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, ids.length]);
      const ones = ids.map(() => 1), zeros = ids.map(() => 0);
      const feeds = { input_ids: whole(ids), attention_mask: whole(ones), token_type_ids: whole(zeros) };
      const given = Object.fromEntries(session.inputNames.map((input) => [input, feeds[input]]));
      return [ids.length, async () => [...Object.values(await session.run(given))[0].data]];
    }));
  }
}

// From text, as its users call it. In node it runs native code in place of WebAssembly, so only browsers time it.
async function addTransformers(calls, { importer, library, paths, model, kinds, sentences }) {
  const { pipeline, env } = await importer(library);
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/" });
  const at = (path) => new URL(`/${path}`, globalThis.location).href;
  Object.assign(env.backends.onnx.wasm, { numThreads: 1, wasmPaths: { mjs: at(paths.mjs), wasm: at(paths.wasm) } });
  for (const [name, dtype] of Object.entries(kinds)) {
    const extract = await pipeline("feature-extraction", model, { dtype, device: "wasm" });
    calls[name] = Object.fromEntries(sentences.map(({ ids, text }) =>
      [ids.length, async () => [...(await extract(text)).data]]));
  }
}
