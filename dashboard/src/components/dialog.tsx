/** Questions before something is destroyed, and words about what happened. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "../api";

interface Question {
  title: string;
  body: ComponentChildren;
  verb: string;
  isHarmless?: boolean;
  act: () => Promise<unknown>;
  done: string;
}

const question = signal<Question | null>(null);
const toast = signal<{ text: string; tone: "good" | "bad"; id: number } | null>(null);

/** Asks; `act` runs only after the button named `verb` was pressed, and `done` is then said. */
export function ask(fresh: Question): void {
  question.value = fresh;
}

export function say(text: string, tone: "good" | "bad" = "good"): void {
  const id = (toast.value?.id ?? 0) + 1;
  toast.value = { text, tone, id };
  setTimeout(() => {
    if (toast.value?.id === id) toast.value = null;
  }, 6000);
}

export function Dialog() {
  const element = useRef<HTMLDialogElement>(null);
  const [isBusy, setBusy] = useState(false);
  const [failure, setFailure] = useState("");
  const current = question.value;
  useEffect(() => {
    if (current !== null) element.current?.showModal();
  }, [current]);
  if (current === null) return null;

  const close = () => {
    setFailure("");
    setBusy(false);
    question.value = null;
  };
  const act = async () => {
    setBusy(true);
    setFailure("");
    try {
      await current.act();
      close();
      say(current.done);
    } catch (error) {
      setBusy(false);
      setFailure(messageOf(error));
    }
  };
  return (
    <dialog ref={element} aria-labelledby="question-title" onClose={close}>
      <h2 id="question-title">{current.title}</h2>
      <div class="dialog-body">{current.body}</div>
      {failure !== "" && (
        <div class="notice notice-bad" role="alert">
          {failure}
        </div>
      )}
      <div class="dialog-actions">
        <button type="button" onClick={close} autofocus>
          Cancel
        </button>
        <button
          type="button"
          class={current.isHarmless ? "primary" : "danger"}
          disabled={isBusy}
          onClick={() => void act()}
        >
          {current.verb}
        </button>
      </div>
    </dialog>
  );
}

export function Toast() {
  const current = toast.value;
  return (
    <div class="toast-place" role="status" aria-live="polite">
      {current !== null && <div class={`toast toast-${current.tone}`}>{current.text}</div>}
    </div>
  );
}
