// The recovered images: replaced in place as the estimate gets sharper, with the real ones beside them at the end.

export class Pictures {
  constructor(grid, text, card, title) {
    this.grid = grid;
    this.text = text;
    this.card = card;
    this.title = title;
    this.number = 0;
  }

  show(run) {
    const curious = run.run?.curious;
    this.title.textContent = curious ? `What ${curious.words} ${curious.several ? "have" : "has"} rebuilt` : "What was rebuilt";
    this.text.textContent = words(run);
    this.card.hidden = Boolean(run.result) && !run.pictures.number;
    if (run.pictures.number === this.number) return;
    this.number = run.pictures.number;
    const { samples, real } = run.pictures;
    this.grid.classList.toggle("pairs", real);
    const figures = samples.map((_, place) => this.grid.children[place] ?? document.createElement("figure"));
    this.grid.replaceChildren(...figures);
    for (const [place, figure] of figures.entries()) {
      const kinds = real ? ["real", "recovered"] : ["recovered"];
      while (figure.children.length > kinds.length) figure.firstChild.remove();
      while (figure.children.length < kinds.length) figure.prepend(picture());
      for (const [i, kind] of kinds.entries()) {
        figure.children[i].src = `/pictures/${this.number}/${kind}/${place}.png`;
        figure.children[i].alt = `sample ${samples[place]}, ${kind}`;
      }
    }
  }
}

// An image that is asked for again, a few times, when the network changes under it (a VPN, a container).
function picture() {
  const image = document.createElement("img");
  let tries = 0;
  image.addEventListener("load", () => { tries = 0; });
  image.addEventListener("error", () => {
    const { src } = image;
    tries += 1;
    if (tries <= 5) setTimeout(() => { if (image.src === src) image.src = src; }, 1000);
  });
  return image;
}

function words(run) {
  const { samples, real, number } = run.pictures;
  if (!number && run.run?.attack === "none") return "No attack looks on.";
  if (!number) return run.state === "ended" ? "The attack made no estimate." : "Nothing yet: the first estimate has not been made.";
  const all = run.result?.scored ?? run.run?.samples; // those that the adversary knew before are not among them
  const total = all ? ` of ${all}` : "";
  if (real) return `${samples.length}${total} samples: the real one on the left, what ${run.run?.curious?.words ?? "the attack"} rebuilt on the right.`;
  const after = run.estimate?.round ? ` after ${run.estimate.round} rounds` : "";
  return `${samples.length}${total} samples, as the attack sees them${after}. They are replaced as the estimate gets better.`;
}
