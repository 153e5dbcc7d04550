-- Enrich: what a device sends, joined with what is known of the device, published for the room it stands in.
--
--   millrace stream create telemetry 'telemetry/#' --shards 2
--   python examples/devices.py --seconds 120 &
--   millrace pipeline run examples/pipelines/enrich/pipeline.sql --set devices=examples/pipelines/enrich/devices.csv
--
-- Spark looks at the file of devices when the pipeline starts: after a change start it again. A device whose name
-- cannot be part of a topic is passed over.

CREATE STREAM messages USING millrace OPTIONS (stream 'telemetry', topics 'telemetry/#');

CREATE TEMPORARY VIEW devices (device STRING, room STRING, offset DOUBLE)
  USING csv OPTIONS (path '${devices}', header 'true');

CREATE TEMPORARY VIEW readings AS
  SELECT from_json(CAST(payload AS STRING), 'device STRING, sequence BIGINT, temperature DOUBLE') AS reading
  FROM messages;

INSERT INTO rooms USING millrace
  SELECT concat('rooms/', coalesce(room, 'unknown'), '/', reading.device) AS topic,
         to_json(named_struct('device', reading.device, 'sequence', reading.sequence,
                              'temperature', reading.temperature + coalesce(offset, 0))) AS payload
  FROM readings LEFT JOIN devices ON reading.device = devices.device
  WHERE reading.device RLIKE r'^[^+#/\x00]{1,200}$' AND reading.temperature IS NOT NULL;
