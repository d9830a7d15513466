// node --test: texts get the tokens and the bits that Python gave them, and bad input is refused.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import { HccsError, hasSimd, load } from "./index.js";

const examples = JSON.parse(await readFile(new URL("examples.json", import.meta.url), "utf8"));

for (const simd of hasSimd() ? [true, false] : [false]) {
  const model = await load(undefined, { simd });
  const answer = (text) => (model.kind === "embeddings" ? model.encode(text, { out: "int16" }) : model.scores(text));

  test(`the same bits as Python, SIMD128 ${simd}`, async () => {
    for (const example of examples) {
      assert.deepEqual([...model.tokenize(example.text)], example.tokens);
      assert.deepEqual([...(await answer(example.text))], example.answer);
    }
    assert.equal(await model.fingerprint(), model.expectedFingerprint);
  });

  test(`calls that overlap, SIMD128 ${simd}`, async () => {
    const found = await Promise.all(examples.map((example) => answer(example.text)));
    found.forEach((one, i) => assert.deepEqual([...one], examples[i].answer));
  });

  test(`bad input, SIMD128 ${simd}`, async () => {
    for (const bad of ["half \ud800 a pair", ["a", "\udc00"], 7, null, undefined, {}, ["a", 7], [null], new Set(["a"])]) {
      await assert.rejects(answer(bad), HccsError);
    }
    for (const bad of ["\udc00", 7, undefined]) assert.throws(() => model.tokenize(bad), HccsError);
    assert.deepEqual(await answer([]), []);
    const [{ text, answer: expected }] = examples; // refused texts leave nothing behind
    assert.deepEqual([...(await answer(text))], expected);
    if (model.kind === "embeddings") {
      await assert.rejects(model.scores("a"), HccsError);
      await assert.rejects(model.encode("a", { prompt: "no such prompt" }), HccsError);
    } else {
      await assert.rejects(model.encode("a"), HccsError);
    }
  });
}
