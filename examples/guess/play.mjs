// Plays number guessing with any language model at an OpenAI-compatible endpoint, by the official
// client: npm install, then OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none node play.mjs
import OpenAI from "openai";

const MOST = 15, MAX_TURNS = 6;
const GAMES = Number(process.argv[2] ?? 0); // 0 plays until it is ended
const AT_ONCE = Number(process.argv[3] ?? 16);
const root = process.env.OPENAI_BASE_URL.split("/sessions/")[0].replace(/\/v1$/, "");

async function play(secret) {
  const id = `secret${secret}.${Math.random().toString(16).slice(2)}`;
  const client = new OpenAI({ baseURL: `${root}/sessions/${id}/v1` });
  const messages = [{ role: "user", content: "?" }];
  let turns = MAX_TURNS + 1, penalty = 0;
  for (let turn = 1; turn <= MAX_TURNS; turn++) {
    const answer = await client.chat.completions.create({
      model: "policy", messages, max_tokens: 3, temperature: 1,
    });
    const said = answer.choices[0].message.content ?? "";
    if (!/^\d\d$/.test(said)) { penalty = 1; break; }
    if (Number(said) === secret) { turns = turn; break; }
    messages.push({ role: "assistant", content: said });
    messages.push({ role: "user", content: secret > Number(said) ? ">" : "<" });
  }
  await client.post("/end", { body: { reward: -turns / MAX_TURNS - penalty } });
  return turns;
}

const played = [];
async function goOn() {
  while (!GAMES || played.length < GAMES) {
    played.push(await play(1 + Math.floor(Math.random() * MOST)));
  }
}
await Promise.all(Array.from({ length: AT_ONCE }, goOn));
const found = played.filter((turns) => turns <= MAX_TURNS).length / played.length;
const mean = played.reduce((sum, turns) => sum + turns, 0) / played.length;
console.log(`${played.length} games, ${(100 * found).toFixed(1)}% found, ${mean.toFixed(3)} turns in the mean`);
