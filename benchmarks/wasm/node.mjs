// node node.mjs SETTINGS.json: prints what contenders.mjs measures, as JSON.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { measure } from "./contenders.mjs";

const settings = JSON.parse(await readFile(process.argv[2], "utf8"));
const read = async (path) => new Uint8Array(await readFile(path));
const importer = (path) => import(pathToFileURL(path));
console.log(JSON.stringify(await measure({ ...settings, read, importer })));
process.exit(0);
