// Ask the search of a built site, without a browser: its worker runs here, as the page would call it.
//   node search.js SITE QUERY ...      prints a JSON list: for each query, the locations that it finds
const fs = require("fs");
const [site, ...queries] = process.argv.slice(2);
const listeners = [];
const waiting = [];
globalThis.self = globalThis.window = globalThis;
globalThis.importScripts = () => {};
globalThis.addEventListener = (_, listener) => listeners.push(listener);
globalThis.postMessage = (message) => waiting.shift()?.(message);

const folder = `${site}/assets/javascripts/workers`;
const worker = fs.readdirSync(folder).find((name) => /^search.*\.min\.js$/.test(name));
(0, eval)(fs.readFileSync(`${folder}/${worker}`, "utf8"));

const [SETUP, QUERY] = [0, 2];
const send = (type, data) =>
  new Promise((answer) => {
    waiting.push(answer);
    listeners.forEach((listener) => listener({ data: { type, data } }));
  });

(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(`${site}/search/search_index.json`, "utf8"));
  await send(SETUP, { config, docs, options: { suggest: false } });
  const found = [];
  for (const query of queries) {
    const { data } = await send(QUERY, query);
    found.push(data.items.map((pages) => pages[0].location));
  }
  console.log(JSON.stringify(found));
})();
