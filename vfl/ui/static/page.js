// The page: takes the run's state from the server's events and shows it.

import { Chart } from "./chart.js";
import { Federation } from "./federation.js";
import { Pictures } from "./pictures.js";
import { STATES, duration, fixed, percent, size } from "./words.js";

const $ = (id) => document.getElementById(id);
const federation = new Federation($("federation"));
const pictures = new Pictures($("pictures"), $("pictures-text"), $("pictures-card"), $("pictures-title"));
const losses = new Chart($("loss-chart"), ["training loss", "test loss"], ["--down", "--peer"]);
const psnr = new Chart($("psnr-chart"), ["PSNR"], ["--up"]);
let round = 0;
let asked = null; // the word that was sent and has not taken effect yet

function show(run) {
  const state = run.state === "ended" ? (run.result ? "done" : "failed") : run.state;
  $("folder").textContent = run.folder;
  $("state").textContent = STATES[state] ?? state;
  $("state").dataset.state = state;
  document.title = `${STATES[state] ?? state} · ${run.folder} · cafe`;
  federation.show(run.workers, run.run ? run.run.label_holder : 0, run.run?.curious ?? null); // null: each worker has labels
  if (run.round > round && run.state === "running") federation.flow();
  round = run.round;
  showRounds(run);
  showAttack(run);
  showLoss(run);
  pictures.show(run);
  showResult(run, state);
  showCurious(run);
  showAbout(run);
  showControls(run);
}

function showRounds(run) {
  $("round").textContent = run.round;
  $("rounds").textContent = run.rounds ?? "?";
  $("rounds-bar").max = run.rounds ?? 1;
  $("rounds-bar").value = run.round;
  for (const way of ["up", "down", "peer"]) $(`bytes-${way}`).textContent = size((run.result?.bytes.up ? run.result : run).bytes[way]);
  $("pace").textContent = pace(run);
}

function pace(run) {
  if (run.state === "waiting") return `${run.workers.filter((w) => w.state === "joined").length} workers have joined`;
  if (run.state === "paused") return "paused: no round is played";
  if (run.state !== "running") return run.result ? `${duration(run.result.seconds.federation)} for all rounds` : "";
  if (run.seconds_left === null) return "measuring the pace";
  return `${run.rounds_per_second.toPrecision(2)} a second, about ${duration(run.seconds_left)} left`;
}

function showAttack(run) {
  [$("known").textContent, $("known-of").textContent] = known(run);
  const step = run.step;
  $("step-bar").max = step?.total || 1;
  $("step-bar").value = run.result ? step?.total || 1 : (step?.done ?? 0);
  $("step").textContent = attackWords(run);
}

// What the attack knows, in one number and its unit: of images, of rows, of labels.
function known({ result, estimate }) {
  const attack = result?.attack ?? estimate ?? {};
  if ((attack.psnr_mean ?? null) !== null) return [fixed(attack.psnr_mean, 1), "dB mean PSNR"];
  if (!result) return ["–", "no estimate yet"];
  if (attack.share_exact !== null) return [percent(attack.share_exact), "of rows exact"];
  if (attack.label_accuracy !== null) return [percent(attack.label_accuracy), "of labels right"];
  return ["–", result.elsewhere ? "played elsewhere" : "no score"];
}

function attackWords(run) {
  const who = run.run?.curious?.words ?? "it";
  if (run.run?.attack === "none") return "no attack looks on";
  if (run.result?.elsewhere) return `${run.run?.attack ?? ""}, played by ${who}: the result is in that party's folder`;
  if (run.state === "attacking" && run.step) return `${run.step.name}: ${run.step.done} of ${run.step.total}`;
  if (run.result) return `${run.run?.attack ?? ""} by ${who}, ${duration(run.result.seconds.attack)} after the last round`;
  return { scoring: "the referee compares with the truth", ended: "it made no estimate" }[run.state] ?? `${who} ${run.run?.curious?.several ? "watch" : "watches"} the rounds`;
}

function showLoss(run) {
  const last = run.losses.at(-1);
  $("loss").textContent = fixed(last?.[1], 4);
  $("accuracy").textContent = run.accuracy === null ? "" : `test accuracy ${percent(run.accuracy)}`;
  losses.show([run.losses, run.test_losses]);
  $("psnr-card").hidden = run.psnr.length < 2;
  if (run.psnr.length >= 2) {
    $("psnr-last").textContent = fixed(run.psnr.at(-1)[1], 1);
    psnr.show([run.psnr]);
  }
}

function showResult(run, state) {
  const { result } = run;
  $("result").hidden = !result && state !== "failed";
  $("level").hidden = !result;
  $("level").textContent = result?.verdict.label ?? "";
  $("level").dataset.level = result?.verdict.state ?? "";
  $("basis").textContent = result?.verdict.basis ?? "";
  $("verdict").textContent = result ? result.verdict.sentence : `The run ended early: ${run.reason ?? "it does not say why"}.`;
  $("ended").textContent = result && result.ended !== "complete" ? `The rounds ended early: ${result.ended}.` : "";
  fill($("scores"), result ? scores(result) : []);
  $("links").replaceChildren(...run.files.map((name) => {
    const link = document.createElement("a");
    link.href = `/files/${name}`;
    link.textContent = { "report.html": "The whole report", "summary.json": "All numbers (summary.json)" }[name];
    link.target = "_blank";
    link.rel = "noopener";
    return link;
  }));
}

function scores({ attack, seconds, rounds, labels, labels_named }) {
  const found = [["rounds", rounds], ["seconds in all", fixed(seconds.total, 1)]];
  if (attack.psnr_mean !== null) {
    found.push(
      ["PSNR, mean", `${fixed(attack.psnr_mean, 1)} dB`], ["median", `${fixed(attack.psnr_median, 1)} dB`],
      ["worst", `${fixed(attack.psnr_min, 1)} dB`], ["guessing the mean image", `${fixed(attack.psnr_baseline, 1)} dB`],
      ["PSNR of slices", `${fixed(attack.psnr_slices, 1)} dB`], ["MSE, mean", attack.mse_mean == null ? "–" : attack.mse_mean.toExponential(1)],
      ["SSIM, mean", fixed(attack.ssim_mean, 4)], ["SSIM of the mean image", fixed(attack.ssim_baseline, 4)], ["30 dB or better", percent(attack.share_30db)],
    );
  }
  if (attack.r2 !== null) found.push(["R2", fixed(attack.r2, 4)], ["rows exact", percent(attack.share_exact)], ["values beyond a guess", percent(attack.gain)]);
  if (labels) found.push([labels_named === false ? "labels right, up to names" : "labels right", percent(labels.right)], ["guessing labels", percent(labels.guess)]);
  if (attack.label_auc !== null) found.push(["AUC of labels", fixed(attack.label_auc, 3)]);
  return found;
}

function showAbout(run) {
  const about = run.run;
  fill($("about"), about ? [
    ["data", `${about.data}, ${about.samples} samples`], ["model", about.model], ["workers", run.workers.length],
    ["batches of", about.batch_size], ["defence", about.defence], ["attack", about.attack],
    ...(about.curious ? [["adversary", about.curious.words]] : []), ["seed", about.seed],
  ] : []);
  $("said").replaceChildren(...run.said.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

function showCurious(run) {
  const words = run.run?.curious?.sentences ?? [];
  $("curious").replaceChildren(...words.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

function fill(list, pairs) {
  list.replaceChildren(...pairs.map(([name, value]) => {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), { textContent: name }));
    row.append(Object.assign(document.createElement("dd"), { textContent: value }));
    return row;
  }));
}

const EFFECT = { pause: "paused", resume: "running", stop: "ended" };

function showControls(run) {
  if (asked && (run.state === EFFECT[asked] || !["running", "paused"].includes(run.state))) asked = null;
  $("pause").hidden = run.state === "paused";
  $("resume").hidden = run.state !== "paused";
  $("pause").textContent = asked === "pause" ? "Pausing…" : "Pause";
  $("pause").disabled = asked !== null || run.state !== "running";
  $("why").textContent = run.state === "attacking" ? "The attack can be stopped, but not paused." : "";
  $("resume").disabled = asked !== null;
  $("stop").disabled = asked === "stop" || !["waiting", "running", "paused", "attacking"].includes(run.state);
  if (run.state === "ended") $("controls").hidden = true;
}

async function tell(word) {
  asked = word;
  const answer = await fetch(`/control/${word}`, { method: "POST", headers: { "X-Cafe": "page" } });
  if (!answer.ok) {
    asked = null;
    notice(await answer.text());
  }
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function listen() {
  const events = new EventSource("/events");
  events.addEventListener("hello", (event) => { $("controls").hidden = !JSON.parse(event.data).controls; });
  events.addEventListener("message", (event) => {
    notice("");
    show(JSON.parse(event.data));
  });
  events.addEventListener("closed", () => {
    events.close();
    $("controls").hidden = true;
    notice("The run's command has ended, and this page is no longer served. `cafe ui FOLDER` shows the run again.");
  });
  events.addEventListener("error", () => notice("No word from the server; trying again."));
}

$("pause").addEventListener("click", () => tell("pause"));
$("resume").addEventListener("click", () => tell("resume"));
$("stop").addEventListener("click", () => $("confirm").showModal());
$("go-on").addEventListener("click", () => $("confirm").close());
$("really-stop").addEventListener("click", () => {
  $("confirm").close();
  tell("stop");
});
listen();
