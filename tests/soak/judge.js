// Judges texts in node: JSON Schema by ajv, regular expressions by the language itself.
// Reads a JSON object from each line, and answers with one:
//   {"schema": text, "draft": "2020" | "2019" | "07", "texts": [...]}
//     -> {"valid": [true | false | null, ...]}   null: JSON.parse takes no such text
//   {"pattern": text, "texts": [...]} -> {"whole": [...], "found": [...]}
// An exception is answered by {"error": text}. Argument: the folder with node_modules.
"use strict";
const readline = require("readline");
const vm = require("vm");
const { createRequire } = require("module");

const MAX_MILLISECONDS = 500; // for all texts of a pattern: node backtracks

let makers = null;
function compile(schema, draft) {
  if (makers === null) {
    const load = createRequire(process.argv[2] + "/");
    makers = {
      "2020": load("ajv/dist/2020").default,
      "2019": load("ajv/dist/2019").default,
      "07": load("ajv").default,
    };
  }
  const options = { strict: false, validateFormats: false, ownProperties: true, logger: false, validateSchema: false };
  return new makers[draft](options).compile(schema);
}

function valid(validate, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  return validate(value);
}

// A script of its own, because only that can be stopped.
const MATCHES = `
  const whole = new RegExp("^(?:" + pattern + ")$", "u"), part = new RegExp(pattern, "u");
  JSON.stringify({ whole: texts.map((text) => whole.test(text)), found: texts.map((text) => part.test(text)) });
`;

function answer(question) {
  if (question.pattern === undefined) {
    const validate = compile(JSON.parse(question.schema), question.draft);
    return { valid: question.texts.map((text) => valid(validate, text)) };
  }
  const inside = vm.createContext({ pattern: question.pattern, texts: question.texts });
  return JSON.parse(vm.runInContext(MATCHES, inside, { timeout: MAX_MILLISECONDS }));
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  let answered;
  try {
    answered = answer(JSON.parse(line));
  } catch (error) {
    answered = { error: String(error).slice(0, 300) };
  }
  process.stdout.write(JSON.stringify(answered) + "\n");
});
