/** Something the API is asked for: its value, what went wrong, and asking again. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, messageOf } from "../api";

export interface Resource<T> {
  value: T | null;
  error: string;
  status: number;
  isLoading: boolean;
  reload: () => void;
}

/** Asks when `where` changes and then every `everyMs`, while the page is looked at. An old value stays. */
export function useResource<T>(where: string, everyMs = 0): Resource<T> {
  const [value, setValue] = useState<T | null>(null);
  const [failure, setFailure] = useState({ error: "", status: 0 });
  const [isLoading, setLoading] = useState(true);
  const [round, setRound] = useState(0);
  const known = useRef("");
  const reload = useCallback(() => setRound((before) => before + 1), []);

  useEffect(() => {
    const stop = new AbortController();
    if (known.current !== where) setValue(null);
    known.current = where;
    const once = async () => {
      setLoading(true);
      try {
        const fresh = await get<T>(where, stop.signal);
        setValue(fresh);
        setFailure({ error: "", status: 200 });
      } catch (error) {
        if (stop.signal.aborted) return;
        setFailure({ error: messageOf(error), status: error instanceof ApiError ? error.status : 0 });
      } finally {
        if (!stop.signal.aborted) setLoading(false);
      }
    };
    void once();
    const timer = everyMs > 0 ? setInterval(() => !document.hidden && void once(), everyMs) : undefined;
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [where, everyMs, round]);

  return { value, error: failure.error, status: failure.status, isLoading, reload };
}
