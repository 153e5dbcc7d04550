package millrace.spark.source;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import millrace.spark.offsets.Span;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.And;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Conditions of a query that the source applies itself: on topic, shard, offset and timestamp.
 *
 * <p>Spark does not look again at a condition that was taken, so one is taken only where it is applied exactly; every
 * other one is given back. Offsets and shards narrow what is asked of the node; topics are looked up in the dictionary
 * of each block; times choose rows, and blocks that begin too late are passed over unread.
 */
final class Conditions implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final Set<String> NEVER_NULL =
            Set.of("topic", "shard", "offset", "timestamp", "payload", "qos", "retain");

    private HashSet<String> topics;
    private final ArrayList<String> prefixes = new ArrayList<>();
    private HashSet<Long> shards;
    private long offsetLeast;
    private long offsetMost = Long.MAX_VALUE - 1;
    long fromUs = Long.MIN_VALUE;
    long untilUs = Long.MAX_VALUE;

    boolean hasTopics() {
        return topics != null || !prefixes.isEmpty();
    }

    boolean takes(String topic) {
        return (topics == null || topics.contains(topic)) && prefixes.stream().allMatch(topic::startsWith);
    }

    /** What of these can hold wanted rows. */
    List<Span> narrowed(List<Span> spans) {
        List<Span> found = new ArrayList<>();
        for (Span span : spans) {
            long start = Math.max(span.start(), offsetLeast);
            long end = Math.min(span.end(), offsetMost + 1);
            if (end > start && (shards == null || shards.contains(span.shard()))) {
                found.add(new Span(span.shard(), start, end, span.stream()));
            }
        }
        return found;
    }

    /** Take this condition as well; false if it has to be applied by Spark. */
    boolean push(Predicate given) {
        if (given instanceof And both) {
            // Half of it would have to be given back as another condition than Spark gave.
            Conditions trial = copy();
            if (!trial.push(both.left()) || !trial.push(both.right())) {
                return false;
            }
            return push(both.left()) && push(both.right());
        }
        Expression[] parts = given.children();
        String column = parts.length > 0 && parts[0] instanceof NamedReference name && name.fieldNames().length == 1
                ? name.fieldNames()[0]
                : "";
        if (given.name().equals("IS_NOT_NULL")) {
            return NEVER_NULL.contains(column);
        }
        List<Object> values = new ArrayList<>();
        for (int at = 1; at < parts.length; at++) {
            if (!(parts[at] instanceof Literal<?> literal) || literal.value() == null) {
                return false;
            }
            values.add(literal.value());
        }
        return switch (given.name()) {
            case "STARTS_WITH" -> column.equals("topic")
                    && values.get(0) instanceof UTF8String prefix
                    && prefixes.add(prefix.toString());
            case "=", "IN" -> oneOf(column, values);
            case ">", ">=", "<", "<=" -> values.size() == 1 && compared(given.name(), column, values.get(0));
            default -> false;
        };
    }

    private Conditions copy() {
        Conditions other = new Conditions();
        other.topics = topics == null ? null : new HashSet<>(topics);
        other.prefixes.addAll(prefixes);
        other.shards = shards == null ? null : new HashSet<>(shards);
        other.offsetLeast = offsetLeast;
        other.offsetMost = offsetMost;
        other.fromUs = fromUs;
        other.untilUs = untilUs;
        return other;
    }

    private boolean oneOf(String column, List<Object> values) {
        if (column.equals("topic") && values.stream().allMatch(UTF8String.class::isInstance)) {
            HashSet<String> given = new HashSet<>();
            values.forEach(value -> given.add(value.toString()));
            topics = topics == null ? given : intersected(topics, given);
            return true;
        }
        if (column.equals("shard") && values.stream().allMatch(Integer.class::isInstance)) {
            HashSet<Long> given = new HashSet<>();
            values.forEach(value -> given.add(((Integer) value).longValue()));
            shards = shards == null ? given : intersected(shards, given);
            return true;
        }
        return values.size() == 1
                && isOrdered(column)
                && values.get(0) instanceof Long value
                && within(column, value, value);
    }

    private static <T> HashSet<T> intersected(HashSet<T> one, HashSet<T> two) {
        one.retainAll(two);
        return one;
    }

    private boolean compared(String sign, String column, Object given) {
        if (!isOrdered(column) || !(given instanceof Long value)) {
            return false;
        }
        if ((sign.equals(">") && value == Long.MAX_VALUE) || (sign.equals("<") && value == Long.MIN_VALUE)) {
            return false;
        }
        return switch (sign) {
            case ">" -> within(column, value + 1, Long.MAX_VALUE);
            case ">=" -> within(column, value, Long.MAX_VALUE);
            case "<" -> within(column, Long.MIN_VALUE, value - 1);
            default -> within(column, Long.MIN_VALUE, value);
        };
    }

    /** A column with an order: both are whole numbers, a timestamp that of its microseconds. */
    private static boolean isOrdered(String column) {
        return column.equals("offset") || column.equals("timestamp");
    }

    private boolean within(String column, long least, long most) {
        if (column.equals("offset")) {
            offsetLeast = Math.max(offsetLeast, least);
            offsetMost = Math.min(offsetMost, most);
        } else {
            fromUs = Math.max(fromUs, least);
            untilUs = Math.min(untilUs, most);
        }
        return true;
    }
}
