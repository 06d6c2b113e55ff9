// The last lines of the log of the process that the node you are logged in at runs in.
import { get } from "./api.js";
import { field, fill, h, select, table } from "./dom.js";

export const title = "Log";

export async function open(body) {
  const level = select([["", "all"], ["warning", "warnings and errors"], ["critical", "errors"]], "", { id: "log-level" });
  const words = h("input", { id: "log-words", type: "search", spellcheck: "false", placeholder: "bucket=default" });
  const list = h("div");
  let lines = [];
  const draw = () => {
    const wanted = level.value === "critical" ? ["critical"] : level.value ? ["warning", "critical"] : null;
    const rows = lines.filter((one) => (!wanted || wanted.includes(one.type)) && `${one.module} ${one.text}`.includes(words.value)).reverse();
    fill(list, table(["Time", "Level", "Part", "Event"], rows.map((one) => [h("time", { datetime: one.serverTime }, one.serverTime.replace("T", " ").slice(0, 23)), one.type === "critical" ? "error" : one.type, one.module, h("span", { class: "break" }, one.text)]), "No such line."));
  };
  level.addEventListener("change", draw);
  words.addEventListener("input", draw);
  fill(body, h("p", { class: "note" }, "The newest lines first, of the node that you are logged in at; earlier ones are where the log goes to. Keys of documents, names of users who could not log in, and addresses of clients are between <ud> and </ud>."), h("div", { class: "row" }, field("Level", level), field("With the words", words)), list);
  return {
    async refresh() {
      lines = (await get("/logs")).list;
      draw();
    },
  };
}
