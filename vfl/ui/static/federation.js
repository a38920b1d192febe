// The federation as a picture: the coordinator in the middle, the workers around it, and messages as moving dots.

import { size } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const SHOWN = 32;
const LEG_MS = 420;
const still = window.matchMedia("(prefers-reduced-motion: reduce)");

function make(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

export class Federation {
  constructor(svg) {
    this.svg = svg;
    this.workers = [];
    this.holder = 0;
    this.curious = null;
    this.moving = false;
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  show(workers, holder, curious) {
    const changed = workers.length !== this.workers.length || holder !== this.holder || curious?.words !== this.curious?.words;
    this.workers = workers;
    this.holder = holder;
    this.curious = curious;
    if (changed) this.draw();
    this.label();
  }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    const count = Math.min(this.workers.length, SHOWN);
    const radius = count > 16 ? 15 : count > (width < 420 ? 4 : 8) ? 21 : 27;
    this.centre = { x: width / 2, y: height / 2 - 6 };
    this.places = Array.from({ length: count }, (_, i) => {
      const angle = (2 * Math.PI * (i + 0.5)) / count - Math.PI / 2 - (count === 2 ? Math.PI / 2 : 0);
      const [x, y] = [Math.cos(angle), Math.sin(angle)];
      const out = Math.max(Math.abs(x), Math.abs(y)) ** -0.6; // towards the corners, where there is room
      return {
        x: this.centre.x + (width / 2 - radius - 28) * x * out * (width > 480 ? 0.86 : 1),
        y: this.centre.y + (height / 2 - radius - 16) * y * out,
      };
    });
    const links = make("g", {}, this.svg);
    for (const [i, at] of this.places.entries()) {
      make("line", { class: this.curious?.coordinator ? "link seen" : "link", x1: this.centre.x, y1: this.centre.y, x2: at.x, y2: at.y }, links);
      if (i !== this.holder && this.places[this.holder]) make("path", { class: this.reads(i) ? "link between seen" : "link between", d: this.arc(at) }, links);
    }
    this.dots = make("g", {}, this.svg);
    const middle = make("g", { class: this.curious?.coordinator ? "coordinator curious" : "coordinator" }, this.svg);
    make("circle", { class: "node", cx: this.centre.x, cy: this.centre.y, r: 48 }, middle);
    make("text", { x: this.centre.x, y: this.centre.y + 4 }, middle).textContent = "coordinator";
    this.nodes = this.places.map((at, i) => this.node(at, i, radius));
    if (this.workers.length > count) {
      const more = make("text", { class: "note", x: width / 2, y: height - 4 }, this.svg);
      more.textContent = `and ${this.workers.length - count} more`;
    }
    this.label();
  }

  node(at, i, radius) {
    const looks = this.curious?.workers.includes(i) ? " curious" : "";
    const group = make("g", { class: `worker${i === this.holder ? " holder" : ""}${looks}` }, this.svg);
    make("circle", { class: "node", cx: at.x, cy: at.y, r: radius }, group);
    const labels = i === this.holder && radius > 20;
    make("text", { x: at.x, y: at.y + (labels ? 0 : 4.5) }, group).textContent = i;
    if (labels) make("text", { class: "note", x: at.x, y: at.y + 14 }, group).textContent = "labels";
    const note = radius > 20 ? make("text", { class: "note", x: at.x, y: at.y + radius + 15 }, group) : null;
    return { group, note };
  }

  label() {
    for (const [i, { group, note }] of (this.nodes ?? []).entries()) {
      const worker = this.workers[i];
      group.dataset.state = worker.state;
      if (note) note.textContent = ["lost", "withheld", "missing"].includes(worker.state) ? worker.state : worker.up ? size(worker.up) : "";
    }
    const there = this.workers.filter((w) => !["missing", "lost"].includes(w.state)).length;
    const whose = this.holder === null ? "each has its own samples and labels" : `worker ${this.holder} holds the labels`;
    const looks = (this.curious?.sentences ?? []).map((text) => `. ${text}`).join("");
    const words = `The coordinator and ${this.workers.length} workers, of which ${there} are there; ${whose}${looks}`;
    this.svg.setAttribute("aria-label", words);
  }

  // Whether what passes between a worker and the label holder reaches the attack.
  reads(worker) {
    return Boolean(this.curious?.workers.some((one) => one === worker || one === this.holder));
  }

  // From a worker to the label holder, past the coordinator.
  arc(at) {
    const to = this.places[this.holder];
    const bend = this.bend(at, to);
    return `M${at.x} ${at.y} Q${bend.x} ${bend.y} ${to.x} ${to.y}`;
  }

  bend(from, to) {
    const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
    const out = { x: middle.x - this.centre.x, y: middle.y - this.centre.y };
    const far = Math.hypot(out.x, out.y);
    if (far < 40) return { x: this.centre.x - (to.y - from.y) * 0.35, y: this.centre.y + (to.x - from.x) * 0.35 };
    return { x: middle.x + (out.x / far) * 26, y: middle.y + (out.y / far) * 26 };
  }

  // One round: orders go out, outputs go to the label holder and back, gradients come in.
  flow() {
    if (this.moving || still.matches || document.hidden || !this.places?.length) return;
    this.moving = true;
    const holder = this.places[this.holder];
    const others = holder ? this.places.filter((at) => at !== holder) : []; // without one nothing goes between workers
    const legs = [
      ["down", this.places.map((at) => straight(this.centre, at))],
      ["peer", others.map((at) => curved(at, this.bend(at, holder), holder))],
      ["peer", others.map((at) => curved(holder, this.bend(at, holder), at))],
      ["up", this.places.map((at) => straight(at, this.centre))],
    ].filter(([, paths]) => paths.length);
    let began = null; // on the clock of the frames, which runs a little behind
    const circles = new Map();
    const frame = (now) => {
      began ??= now;
      const leg = Math.floor((now - began) / LEG_MS);
      const along = ((now - began) % LEG_MS) / LEG_MS;
      if (leg >= legs.length) {
        this.dots.replaceChildren();
        this.moving = false;
        return;
      }
      const [kind, paths] = legs[leg];
      if (!circles.has(leg)) {
        this.dots.replaceChildren();
        circles.set(leg, paths.map(() => make("circle", { class: `dot ${kind}`, r: 5 }, this.dots)));
      }
      const eased = along * along * (3 - 2 * along);
      for (const [i, circle] of circles.get(leg).entries()) {
        const { x, y } = paths[i](eased);
        circle.setAttribute("cx", x);
        circle.setAttribute("cy", y);
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
}

function straight(from, to) {
  return (t) => ({ x: from.x + (to.x - from.x) * t, y: from.y + (to.y - from.y) * t });
}

function curved(from, bend, to) {
  const mix = (a, b, c, t) => (1 - t) * (1 - t) * a + 2 * t * (1 - t) * b + t * t * c;
  return (t) => ({ x: mix(from.x, bend.x, to.x, t), y: mix(from.y, bend.y, to.y, t) });
}
