// Numbers and states in words.

export const STATES = {
  waiting: "Waiting for workers", running: "Training", paused: "Paused", attacking: "Attack at work",
  scoring: "Scoring", done: "Done", failed: "Ended early",
};

export function size(count) {
  if (count === undefined || count === null) return "–";
  for (const unit of ["bytes", "KB", "MB"]) {
    if (count < 1000) return `${Number(count.toPrecision(3))} ${unit}`;
    count /= 1000;
  }
  return `${Number(count.toPrecision(3))} GB`;
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function fixed(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}%`;
}
